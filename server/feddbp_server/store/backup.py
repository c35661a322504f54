"""Backups of a run, made while its server runs: one database with everything inside, bodies too.

A server takes the file as its `run.sqlite3`, and needs no other.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from feddbp_common.artifacts import BODIES_NAME, DATABASE_NAME
from feddbp_common.atomic_files import commit_file
from feddbp_server.store.body_log import BodyKey, Place, read_body, reading
from feddbp_server.store.interface import StoreError
from feddbp_server.store.migrations import FIRST_WITH_PLACES
from feddbp_server.store.stored_run import database_in


def write_backup(state_dir: Path, target: Path) -> None:
    """Copies a run to `target`, which is complete or not there at all.

    Raises:
        StoreError: the state directory holds no run, or one that cannot be read.
    """
    database = database_in(state_dir)
    if database is None:
        raise StoreError(f"{state_dir} has no {DATABASE_NAME}; give the --state-dir of a server")
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        bodies = database.with_name(BODIES_NAME)
        with reading(bodies) as fd:  # before the rows: no body that they name is overwritten from here on
            _copy(database, partial)
            _take_bodies_in(partial, bodies, fd)
        commit_file(partial, target)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"no backup of {state_dir}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


def _copy(database: Path, copy: Path) -> None:
    source = f"{database.resolve().as_uri()}?mode=ro"
    with closing(sqlite3.connect(source, uri=True)) as run, closing(sqlite3.connect(copy)) as made:
        run.backup(made)
        made.execute("PRAGMA journal_mode = DELETE")  # one file


def _take_bodies_in(copy: Path, bodies: Path, fd: int | None) -> None:
    with closing(sqlite3.connect(copy)) as made, made:
        if made.execute("PRAGMA user_version").fetchone()[0] < FIRST_WITH_PLACES:  # every body is inside
            return
        rows = made.execute("SELECT id, client_id, round, sha256, start, length FROM upload WHERE start IS NOT NULL")
        for number, client_id, round_number, sha256, *place in rows.fetchall():
            if fd is None:
                raise sqlite3.DatabaseError(f"{bodies.name} is missing; if the server has just begun, try again")
            body = read_body(fd, bodies, BodyKey(client_id, round_number, sha256), Place(*place))
            made.execute("UPDATE upload SET body = ?, start = NULL, length = NULL WHERE id = ?", (body, number))
