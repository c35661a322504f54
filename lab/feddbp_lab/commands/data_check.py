"""`feddbp data check`: what a client would read from a path, without a server."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import Field
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from feddbp_common.config.command_line import settings_from, settings_parser
from feddbp_common.config.types import CommaSeparated, FrozenModel
from feddbp_common.errors import ConfigurationError, ExitCode
from feddbp_common.humanize import human_bytes, quantity
from feddbp_common.optional_deps import CHECKPOINT_MODULES, require
from feddbp_lab.terminal.format import facts_table, plain_table, print_whole

if TYPE_CHECKING:
    from feddbp_client.data.check import DataReport

PROG: Final = "feddbp data check"
_SHOWN_CLASSES: Final = 30
_SHOWN_COMMAND: Final = 12
"""Classes up to which the command of a server is shown."""


class DataCheckOptions(FrozenModel):
    """Data: the settings of the run that decide what a client reads."""

    classes: int | None = Field(None, ge=1, description="classes of the run; by default those in the data")
    class_names: CommaSeparated = Field((), description="the run's class names, comma-separated, in its order")
    image_size: int | None = Field(None, ge=1, description="the run's --image-size")
    validation: float = Field(0.0, ge=0, lt=1, description="the run's --validation")
    seed: int = Field(0, ge=0, description="the run's --seed, which decides what is held out for the test")
    id: int = Field(0, ge=0, description="the client's id, which does so too")
    json_output: bool = Field(False, description="print it as JSON", json_schema_extra={"flag": "--json"})


class DataCheckConfig(FrozenModel):
    """All options of `feddbp data check`."""

    data: DataCheckOptions = DataCheckOptions()


def command(argv: Sequence[str]) -> int:
    parser = settings_parser(PROG, "Reads data as a client would, and prints what it finds.", DataCheckConfig)
    parser.usage = f"{PROG} PATH [options]"
    parser.add_argument("path", type=Path, metavar="PATH", help="a folder with a folder of images per class, or an npz")
    flags = parser.parse_intermixed_args(argv)
    options = settings_from(DataCheckConfig, flags).data
    require("reading data", CHECKPOINT_MODULES, extra="client")
    report = _checked(flags.path, options)
    if options.json_output:
        print(json.dumps({**asdict(report), "warnings": report.warnings}, indent=2))
    else:
        for piece in _view(flags.path, report):
            # as one line each, names and commands can be copied
            print_whole(piece, soft_wrap=isinstance(piece, Text))
    return ExitCode.USAGE if report.unreadable else ExitCode.OK


def _checked(path: Path, options: DataCheckOptions) -> DataReport:
    from feddbp_client.data.check import CheckOptions, check_data
    from feddbp_client.data.images import DataError

    asked = options.model_dump(exclude={"json_output", "id"})
    try:
        return check_data(path, CheckOptions(**asked, client_id=options.id))
    except DataError as error:
        raise ConfigurationError(str(error)) from error


def _view(path: Path, report: DataReport) -> Iterator[RenderableType]:
    yield _classes_table(report)
    yield Text()
    yield _facts(report)
    for line in report.unreadable:
        yield Text.assemble(("unreadable  ", "bold red"), line)
    for line in report.warnings:
        yield Text.assemble(("warning  ", "bold yellow"), line)
    if report.unreadable:
        unreadable = quantity(len(report.unreadable), "file")
        yield Text(f"\n{unreadable} unreadable: a client refuses the data without --skip-unreadable")
    names = ",".join(counts.name for counts in report.classes)
    if len(report.classes) <= _SHOWN_COMMAND and "," not in "".join(counts.name for counts in report.classes):
        yield Text(f"\nfeddbp-server --dataset custom --class-names {shlex.quote(names)}", style="dim")
        yield Text(f"feddbp-client --id 0 --data {shlex.quote(str(path))}", style="dim")


def _classes_table(report: DataReport) -> Table:
    has_validation = any(counts.validation for counts in report.classes)
    table = plain_table()
    table.add_column("class", overflow="ellipsis", no_wrap=True)
    for title in ("training", *(["validation"] if has_validation else []), "test"):
        table.add_column(title, justify="right")
    for counts in report.classes[:_SHOWN_CLASSES]:
        held_out = [str(counts.validation)] if has_validation else []
        table.add_row(Text(counts.name), str(counts.train), *held_out, str(counts.test))
    if len(report.classes) > _SHOWN_CLASSES:
        table.add_row(Text(f"{len(report.classes) - _SHOWN_CLASSES} more", style="dim"))
    return table


def _facts(report: DataReport) -> Table:
    train, validation, test = (
        sum(getattr(counts, part) for counts in report.classes) for part in ("train", "validation", "test")
    )
    channels, height, width = report.image_shape
    held = "its own part" if report.has_test_part else "held out of all"
    split = [f"{train} training", *([f"{validation} validation"] if validation else []), f"{test} test ({held})"]
    where = "in memory" if report.is_in_memory else "decoded when they are read, and cached on disk (--data-cache)"
    rows = {
        "images": f"{train + validation + test}, read as {width}x{height} {'RGB' if channels == 3 else 'grey'}",
        "pixels": report.pixels,
        "classes": str(len(report.classes)),
        "split": ", ".join(split),
        "memory": f"{human_bytes(report.decoded_bytes)} decoded, {where}",
    }
    return facts_table([*rows.items(), *(("note", note) for note in report.notes)])
