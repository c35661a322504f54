"""`feddbp backup DIR TARGET`: copies a run's state directory while its server runs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from feddbp_common.artifacts import (
    AUDIT_NAME,
    CLIENT_PROTOTYPES_NAME,
    CLIENTS_NAME,
    DATABASE_NAME,
    METRICS_NAME,
    PROTOTYPES_DIR_NAME,
    ROUNDS_NAME,
    SERVER_LOCK_NAME,
    SUMMARY_NAME,
)
from feddbp_common.atomic_files import commit_file, replace_lines
from feddbp_common.config.command_line import Parser
from feddbp_common.errors import ConfigurationError, ExitCode
from feddbp_common.file_lock import is_locked
from feddbp_common.humanize import human_bytes
from feddbp_server.reporting.prototype_snapshots import snapshot_files
from feddbp_server.reporting.unfinished import stored_metrics, summarise_unfinished
from feddbp_server.run.state_machine.state import Phase
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
    database = flags.target / DATABASE_NAME
    replaced = " (replaces the backup that was there)" if database.exists() else ""
    before = os.umask(0o077)  # as the server's own files: for its user alone
    try:
        flags.target.mkdir(parents=True, exist_ok=True)
        _copy_run(flags.directory, flags.target)
    except OSError as error:
        raise ConfigurationError(f"{error.filename or flags.target}: {error.strerror}") from None
    finally:
        os.umask(before)
    print(f"{database}: {human_bytes(database.stat().st_size)}, run {read_run_id(flags.target)}{replaced}")
    return ExitCode.OK


def _copy_run(directory: Path, target: Path) -> None:
    """Copies the database, which a server needs, and the files from which reports and the dashboard show more."""
    summary = _fetch(directory / SUMMARY_NAME, target)  # before the database, which may be that of a longer run
    write_backup(directory, target / DATABASE_NAME)
    for earlier in target.glob(f"{AUDIT_NAME}*"):
        earlier.unlink()
    for path in (*directory.glob(f"{AUDIT_NAME}*"), directory / ROUNDS_NAME, directory / CLIENTS_NAME):
        _copy(path, target)
    replace_lines(target / METRICS_NAME, map(json.dumps, stored_metrics(target)))
    if summary is not None and _has_ended(target):
        commit_file(summary, target / SUMMARY_NAME)
    else:
        for stale in (target / SUMMARY_NAME, summary):
            if stale is not None:
                stale.unlink(missing_ok=True)
    _copy_snapshots(directory, target)


def _copy_snapshots(directory: Path, target: Path) -> None:
    copies = target / PROTOTYPES_DIR_NAME
    shutil.rmtree(copies, ignore_errors=True)  # of an earlier backup
    paths = [*snapshot_files(directory).values(), directory / PROTOTYPES_DIR_NAME / CLIENT_PROTOTYPES_NAME]
    if any(path.exists() for path in paths):
        copies.mkdir()
    for path in paths:
        _copy(path, copies)


def _copy(path: Path, target: Path) -> None:
    if (fetched := _fetch(path, target)) is not None:
        commit_file(fetched, target / path.name)


def _fetch(path: Path, target: Path) -> Path | None:
    """Copies a file under another name; None if there is none, or no longer."""
    partial = target / f".{path.name}.partial"
    try:
        shutil.copyfile(path, partial)
    except FileNotFoundError:
        return None
    return partial


def _has_ended(state_dir: Path) -> bool:
    summary = summarise_unfinished(state_dir)
    return summary is not None and Phase(summary["outcome"]).is_final


def _check_target(directory: Path, target: Path) -> None:
    if is_locked(target / SERVER_LOCK_NAME):
        raise ConfigurationError(f"{target} is the state directory of a server that is running")
    if target.is_dir() and directory.is_dir() and target.samefile(directory):
        raise ConfigurationError(f"{target} is the directory that is to be copied; give another one")
    before = read_run_id(target)
    if before is not None and before != read_run_id(directory):
        raise ConfigurationError(f"{target} holds another run, {before}; give another directory")
