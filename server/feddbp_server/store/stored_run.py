"""The run in a state directory as it is stored, read without a lock while a server may be using it."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, NamedTuple

from feddbp_common.artifacts import DATABASE_NAME
from feddbp_server.store.interface import StateDirectoryError, StoreError

APPLICATION_ID: Final = 0x46444250  # "FDBP": tells our file from any other SQLite database
OPTIONS_TABLE: Final = "server_options"


class StoredRun(NamedTuple):
    """A run that clients have joined."""

    config_json: str
    options_json: str
    """Of the server that served it last; `{}` if that was a version that did not store them."""


def read_stored_run(state_dir: Path) -> StoredRun | None:
    """Returns the run of a state directory; None if there is none, or no client has joined it.

    Raises:
        StoreError: the database is of another program, or damaged.
    """
    path = database_in(state_dir)
    if path is None:
        return None
    try:
        with closing(open_read_only(path)) as database:
            if database.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
                return None  # of a server that was killed when it began
            check_is_ours(database, path)
            row = database.execute("SELECT config FROM run WHERE EXISTS (SELECT 1 FROM client)").fetchone()
            return None if row is None else StoredRun(str(row[0]), _options(database))
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be read: {error}; restore it from a backup or move it away") from error


def read_run_id(state_dir: Path) -> str | None:
    """Returns the id of the run in a state directory, whether or not a client has joined it."""
    path = database_in(state_dir)
    if path is None:
        return None
    try:
        with closing(open_read_only(path)) as database:
            row = database.execute("SELECT run_id FROM run").fetchone()
            return None if row is None else str(row[0])
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be read: {error}") from error


def database_in(state_dir: Path) -> Path | None:
    """Returns the database in a state directory; None if there is none.

    Raises:
        StateDirectoryError: this user may not look into the directory.
        StoreError: this user may not read the database.
    """
    path = state_dir / DATABASE_NAME
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StateDirectoryError(state_dir, str(error.strerror)) from None
    if is_file and not os.access(path, os.R_OK):  # SQLite does not say why it cannot open a file
        raise StoreError(f"{path} cannot be read: {os.strerror(errno.EACCES)}")
    return path if is_file else None


def check_is_ours(database: sqlite3.Connection, path: Path) -> None:
    """Raises StoreError if another program wrote the database, which is not empty."""
    if database.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise StoreError(f"{path} is not a run of this server; move it away or give another --state-dir")


def open_read_only(path: Path) -> sqlite3.Connection:
    # without a log there is nothing to recover: immutable, so that reading leaves no files behind
    is_clean = not path.with_name(f"{path.name}-wal").exists()
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if is_clean else ''}", uri=True)


def _options(database: sqlite3.Connection) -> str:
    with suppress(sqlite3.OperationalError):  # the table is missing in runs of earlier versions
        row = database.execute(f"SELECT options FROM {OPTIONS_TABLE}").fetchone()  # noqa: S608 - a fixed name
        if row is not None:
            return str(row[0])
    return "{}"
