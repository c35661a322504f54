"""`feddbp compare`: runs side by side, as tables and, where matplotlib is installed, as a picture."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.text import Text

from feddbp_common.config.command_line import Parser
from feddbp_common.errors import ConfigurationError, ExitCode
from feddbp_common.optional_deps import install_command, missing_modules
from feddbp_lab.commands.report import read_results
from feddbp_lab.results.comparison import ComparedRun, Comparison
from feddbp_lab.results.damage import damage_as_error
from feddbp_lab.terminal.comparison_table import comparison_view
from feddbp_lab.terminal.format import terminal

PROG: Final = "feddbp compare"


def command(argv: Sequence[str]) -> int:
    parser = Parser(prog=PROG, description="Prints the results of several runs side by side.", allow_abbrev=False)
    parser.add_argument(
        "directories",
        nargs="+",
        type=Path,
        metavar="DIR",
        help="as for feddbp report; the others are compared with the first",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="draw the curves into this PNG file")
    parser.add_argument("--anyway", action="store_true", help="compare runs on other data or with other clients too")
    flags = parser.parse_args(argv)
    if len(flags.directories) < 2:
        raise ConfigurationError(f"{PROG} needs two runs at least; `feddbp report DIR` shows one")
    if flags.out is not None and flags.out.suffix.lower() != ".png":
        raise ConfigurationError(f"--out {flags.out}: the picture is a PNG; give a name that ends in .png")
    with damage_as_error(", ".join(map(str, flags.directories))):
        comparison = Comparison(_read(flags.directories))
        obstacles = comparison.obstacles()
        if obstacles and not flags.anyway:
            raise ConfigurationError(f"not comparable: {'; '.join(obstacles)}; --anyway prints these runs still")
        _print(comparison, obstacles)
    if flags.out is not None:
        _draw(comparison, flags.out)
    return ExitCode.OK


def _print(comparison: Comparison, obstacles: Sequence[str]) -> None:
    console = terminal(highlight=False)
    for piece in comparison_view(comparison, width=console.width):
        console.print(piece, soft_wrap=isinstance(piece, Text))
    for obstacle in obstacles:
        console.print(Text.assemble(("not comparable  ", "bold red"), obstacle), soft_wrap=True)


def _read(directories: Sequence[Path]) -> list[ComparedRun]:
    names = [directory.name or str(directory.resolve().name) for directory in directories]
    repeated = {name for name, count in Counter(names).items() if count > 1}
    return [
        _run(directory, str(directory) if name in repeated else name)
        for directory, name in zip(directories, names, strict=True)
    ]


def _run(directory: Path, name: str) -> ComparedRun:
    with damage_as_error(str(directory)):
        run = ComparedRun(name=name, results=read_results(directory))
        run.check()
    return run


def _draw(comparison: Comparison, path: Path) -> None:
    if missing_modules(("matplotlib",)):
        note = f"{path} was not drawn: it needs matplotlib: {install_command('lab')}"
        print(f"{PROG}: {note}", file=sys.stderr)
        return
    from feddbp_lab.results.comparison_figure import draw_comparison

    try:
        draw_comparison(comparison, path)
    except OSError as error:
        raise ConfigurationError(f"--out {path}: {error.strerror}") from None
    print(path)
