"""`feddbp privacy audit`: what the uploads of a finished run tell about the data behind them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pydantic import Field
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from feddbp_common.artifacts import AUDIT_PICTURE_NAME
from feddbp_common.config.command_line import settings_from, settings_parser
from feddbp_common.config.types import FrozenModel
from feddbp_common.errors import ConfigurationError, ExitCode
from feddbp_common.optional_deps import CHECKPOINT_MODULES, install_command, missing_modules, require
from feddbp_lab.terminal.format import print_whole, terminal

PROG: Final = "feddbp privacy"
_AUDIT: Final = "audit"


class AuditOptions(FrozenModel):
    """Audit: where the data of the run are, and what is printed."""

    data_dir: Path = Field(Path("data"), description="where the run's public data set is found or downloaded to")
    data: dict[str, str] = Field(
        {},
        description="data of a client that brought its own, ID=PATH; repeatable",
        json_schema_extra={"metavar": "ID=PATH"},
    )
    json_output: bool = Field(False, description="print the audit as JSON", json_schema_extra={"flag": "--json"})


class AuditConfig(FrozenModel):
    """All options of `feddbp privacy audit`."""

    audit: AuditOptions = AuditOptions()


def command(argv: Sequence[str]) -> int:
    parser = settings_parser(
        f"{PROG} {_AUDIT}",
        "Attacks the prototypes of a finished run, with its own data: who was among the samples, and which labels a "
        f"client has. Prints a table and draws DIR/{AUDIT_PICTURE_NAME}.",
        AuditConfig,
    )
    parser.usage = f"{PROG} {_AUDIT} DIR [options]"
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="the output of `feddbp demo`, or a client's --state-dir"
    )
    what, *rest = argv or ("",)
    if what != _AUDIT and what not in ("--help", "-h"):
        raise ConfigurationError(f"{PROG} has one command: {parser.usage}")
    flags = parser.parse_intermixed_args(rest if what == _AUDIT else argv)
    options = settings_from(AuditConfig, flags).audit
    if not flags.directory.is_dir():
        raise ConfigurationError(f"{flags.directory}: no such directory")
    own_data = {_client_id(name): Path(path) for name, path in options.data.items()}
    require(parser.prog, CHECKPOINT_MODULES, extra="client")
    # torch takes a second to import: errors in the flags are reported before that
    from feddbp_client.data import DataError
    from feddbp_lab.privacy.audit import audit
    from feddbp_lab.privacy.picture import draw_audit
    from feddbp_lab.privacy.table import as_json, audit_tables

    try:
        with _progress_shown() as progress:
            found = audit(flags.directory, data_dir=options.data_dir, own_data=own_data, progress=progress)
    except DataError as error:
        raise ConfigurationError(str(error)) from error
    if options.json_output:
        print(json.dumps(as_json(found), indent=2))
        return ExitCode.OK
    print_whole(audit_tables(found))
    if missing_modules(("matplotlib",)):
        print(f"{parser.prog}: no picture was drawn: it needs matplotlib: {install_command('lab')}", file=sys.stderr)
    else:
        draw_audit(found, flags.directory / AUDIT_PICTURE_NAME)
        print(f"picture: {flags.directory / AUDIT_PICTURE_NAME}")
    return ExitCode.OK


def _client_id(text: str) -> int:
    if not text.isdecimal():
        raise ConfigurationError(f"--data {text}=...: {text!r} is not a client's id")
    return int(text)


@contextmanager
def _progress_shown() -> Iterator[Callable[[str, int, int], None]]:
    """On stderr: a bar on a terminal, a line for each client elsewhere."""
    console = terminal(stderr=True)
    if not console.is_terminal:

        def print_line(what: str, number: int, clients: int) -> None:
            print(f"{PROG} {_AUDIT}: {what} client {number} of {clients}", file=sys.stderr, flush=True)

        yield print_line
        return
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=console, transient=True
    ) as bars:
        bar = bars.add_task("loading clients", total=None)

        def advance(what: str, number: int, clients: int) -> None:
            bars.update(bar, description=f"{what} client", completed=number, total=clients)

        yield advance
