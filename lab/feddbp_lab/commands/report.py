"""`feddbp report`: prints the table and draws the curves of a run that has ended, from the files of its server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from feddbp_common.artifacts import CURVES_NAME, METRICS_NAME, SUMMARY_NAME
from feddbp_common.config.command_line import Parser
from feddbp_common.errors import ConfigurationError, ExitCode
from feddbp_common.optional_deps import require
from feddbp_lab.results.curves import draw_curves
from feddbp_lab.results.run_results import RunResults
from feddbp_lab.terminal.run_table import run_table

PROG: Final = "feddbp report"
_DAMAGE: Final = (LookupError, TypeError, ValueError, AttributeError)
"""Errors from using files in which something is missing or of the wrong type."""


def command(argv: Sequence[str]) -> int:
    parser = Parser(
        prog=PROG,
        description=f"Prints the results of a run that has ended, and draws its curves into DIR/{CURVES_NAME}.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "directory",
        type=Path,
        metavar="DIR",
        help=f"a server's --state-dir, or any directory with its {SUMMARY_NAME} and {METRICS_NAME}",
    )
    directory: Path = parser.parse_args(argv).directory
    require(PROG, ("matplotlib",), extra="lab")
    _check_files(directory)
    try:
        results = RunResults.read(directory)
        table = run_table(results, directory)
        draw_curves(results, directory / CURVES_NAME)
    except OSError as error:
        raise ConfigurationError(f"{error.filename or directory}: {error.strerror}") from None
    except _DAMAGE as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ConfigurationError(f"the results in {directory} are damaged: {problem}") from error
    Console().print(table)
    return ExitCode.OK


def _check_files(directory: Path) -> None:
    if not directory.is_dir():
        raise ConfigurationError(f"{directory}: no such directory")
    missing = [name for name in (SUMMARY_NAME, METRICS_NAME) if not (directory / name).exists()]
    if missing:
        raise ConfigurationError(
            f"{directory} has no {' and no '.join(missing)}; a server's --state-dir has both once its run has ended"
        )
