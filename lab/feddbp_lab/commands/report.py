"""`feddbp report`: prints the table and draws the curves of a run, from the files of its server."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from feddbp_common.artifacts import CURVES_NAME, DATABASE_NAME, METRICS_NAME, PACKED_METRICS_NAME, SUMMARY_NAME
from feddbp_common.config.command_line import Parser
from feddbp_common.errors import ConfigurationError, ExitCode
from feddbp_common.optional_deps import install_command, missing_modules
from feddbp_lab.results.baseline import check_local, check_same_clients
from feddbp_lab.results.curves import draw_curves
from feddbp_lab.results.damage import damage_as_error
from feddbp_lab.results.pictures.report import pictures_place, write_run_pictures
from feddbp_lab.results.run_files import RunFiles, last_accuracies
from feddbp_lab.results.run_results import RunResults, has_metrics
from feddbp_lab.terminal.format import print_whole
from feddbp_lab.terminal.run_table import run_table

PROG: Final = "feddbp report"


def command(argv: Sequence[str]) -> int:
    parser = Parser(
        prog=PROG,
        description="Prints the results of a run so far, and draws pictures of it, with a page that has them all.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "directory",
        type=Path,
        metavar="DIR",
        help=f"a server's --state-dir, or any directory with its {SUMMARY_NAME} and {METRICS_NAME}",
    )
    parser.add_argument(
        "--columns",
        type=int,
        choices=(1, 2),
        default=2,
        help="width of the pictures in columns of a paper (default: 2)",
    )
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="DIR",
        help="a `local` run of the same seed, to picture the gain over it",
    )
    flags = parser.parse_args(argv)
    directory: Path = flags.directory
    missing = missing_modules(("matplotlib", "jinja2"))
    with damage_as_error(str(directory)):
        results = read_results(directory)
        files = [name for name in (SUMMARY_NAME, METRICS_NAME, PACKED_METRICS_NAME) if (directory / name).exists()]
        if missing:
            table = run_table(results, directory, files)
        else:
            table = run_table(results, directory, [*files, CURVES_NAME], pictures=pictures_place(directory))
        baseline = _read_baseline(flags.baseline, results) if flags.baseline else None
        if not missing:
            draw_curves(results, directory / CURVES_NAME)
            run = RunFiles(directory)
            write_run_pictures(run, results, columns=flags.columns, baseline=baseline)
    print_whole(table)
    if not missing:
        for note in run.notes:
            print(f"{PROG}: {note}", file=sys.stderr)
    else:
        needed = f"{', '.join(missing)}: {install_command('lab')}"
        print(f"{PROG}: no curves were drawn: they need {needed}", file=sys.stderr)
    return ExitCode.OK


def _read_baseline(directory: Path, run: RunResults) -> dict[int, float]:
    with damage_as_error(str(directory)):
        local = read_results(directory)
        check_local(directory, local.summary["method"])
        check_same_clients(directory, local, run)
        return last_accuracies(local.metrics)


def read_results(directory: Path) -> RunResults:
    if not directory.is_dir():
        raise ConfigurationError(f"{directory}: no such directory")
    if (directory / SUMMARY_NAME).exists():
        if not has_metrics(directory):
            raise ConfigurationError(f"{directory} has a {SUMMARY_NAME}, but no {METRICS_NAME} beside it")
        return RunResults.read(directory)
    unfinished = RunResults.read_unfinished(directory)
    if unfinished is None:
        raise ConfigurationError(
            f"{directory} has neither a {SUMMARY_NAME} nor a {DATABASE_NAME}; give the --state-dir of a server"
        )
    return unfinished
