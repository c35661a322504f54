"""`feddbp backup DIR TARGET`: copies a run while its server goes on; the copy is a state directory itself."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from feddbp_common.artifacts import AUDIT_NAME, DATABASE_NAME, SERVER_LOCK_NAME
from feddbp_common.atomic_files import commit_file
from feddbp_common.config.command_line import Parser
from feddbp_common.errors import ConfigurationError, ExitCode
from feddbp_common.file_lock import is_locked
from feddbp_common.humanize import human_bytes
from feddbp_server.store.backup import write_backup
from feddbp_server.store.stored_run import read_run_id

PROG: Final = "feddbp backup"


def command(argv: Sequence[str]) -> int:
    parser = Parser(
        prog=PROG,
        usage=f"{PROG} DIR TARGET",
        description="Copies the run of a server, which may be running, to another directory. The copy is a state "
        "directory: feddbp-server --state-dir TARGET resumes the run in it.",
        allow_abbrev=False,
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="the server's --state-dir")
    parser.add_argument(
        "target", type=Path, metavar="TARGET", help="a directory; an earlier backup of the same run in it is replaced"
    )
    flags = parser.parse_args(argv)
    _check_target(flags.directory, flags.target)
    try:
        flags.target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{flags.target}: {error.strerror}") from None
    database = flags.target / DATABASE_NAME
    write_backup(flags.directory, database)
    if (audit := flags.directory / AUDIT_NAME).exists():
        partial = flags.target / f".{AUDIT_NAME}.partial"
        shutil.copyfile(audit, partial)
        commit_file(partial, flags.target / AUDIT_NAME)
    print(f"{database}: {human_bytes(database.stat().st_size)}, run {read_run_id(flags.target)}")
    return ExitCode.OK


def _check_target(directory: Path, target: Path) -> None:
    if is_locked(target / SERVER_LOCK_NAME):
        raise ConfigurationError(f"{target} is the state directory of a server that is running")
    if target.is_dir() and directory.is_dir() and target.samefile(directory):
        raise ConfigurationError(f"{target} is the directory that is to be copied; give another one")
    before = read_run_id(target)
    if before is not None and before != read_run_id(directory):
        raise ConfigurationError(f"{target} holds another run, {before}; give another directory")
