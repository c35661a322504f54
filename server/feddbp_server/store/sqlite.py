"""The SQLite back end: a database in WAL mode, the bodies of uploads in a file beside it, one owner at a time."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import tempfile
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

from feddbp_common.artifacts import BODIES_NAME, DATABASE_NAME, ENDPOINT_NAME, SERVER_LOCK_NAME
from feddbp_common.file_lock import FileLock, LockHeldError
from feddbp_common.given_paths import directory_problem
from feddbp_common.humanize import join_address
from feddbp_common.version import VERSION
from feddbp_server.store.body_log import BodyKey, BodyLog, Place
from feddbp_server.store.interface import (
    AggregateRecord,
    ClientRecord,
    ReportRecord,
    StateDirectoryError,
    Store,
    StoreError,
    SumRecord,
    UploadRecord,
    refuse_other_run,
)
from feddbp_server.store.migrations import FORMAT, NEW_MEMBERS, describe_newer, upgrade
from feddbp_server.store.stored_run import APPLICATION_ID, OPTIONS_TABLE, check_is_ours

_ROOM: Final = 4 << 20
"""Free bytes on the disk before it counts as writable again."""
_LOG_BYTES: Final = 64 << 20
"""A write-ahead log of this size is checkpointed by the next commit. A round does not reach it; without it, a run that
is paused or waiting would grow the log with every join."""
_CHECKPOINT_BYTES: Final = 4 << 20
"""A log of this size is checkpointed when a round has closed."""
_INLINE_BYTES: Final = 2048
"""Bodies up to this size are kept in their row: a record of their own would take more space than they do."""
_DECISION: Final = -1
"""In place of a client id, for what a step of a secure sum decided."""
_SUM_RECORDS: Final = """
CREATE TABLE IF NOT EXISTS sum_record (
    round INTEGER NOT NULL, step TEXT NOT NULL, client_id INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (round, step, client_id)) WITHOUT ROWID
"""
_SCHEMA: Final = f"""
CREATE TABLE run (
    id INTEGER PRIMARY KEY CHECK (id = 0), run_id TEXT NOT NULL, config TEXT NOT NULL, progress TEXT,
    software_version TEXT NOT NULL);
{NEW_MEMBERS};
CREATE TABLE client (
    client_id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, session_sha256 BLOB NOT NULL,
    data BLOB NOT NULL, capabilities BLOB NOT NULL);
CREATE TABLE upload (
    id INTEGER PRIMARY KEY, round INTEGER NOT NULL, client_id INTEGER NOT NULL, sha256 BLOB NOT NULL,
    manifest BLOB NOT NULL, body BLOB NOT NULL, start INTEGER, length INTEGER, UNIQUE (round, client_id));
CREATE INDEX upload_by_client ON upload (client_id, round);
CREATE TABLE report (
    round INTEGER NOT NULL, client_id INTEGER NOT NULL, metrics BLOB NOT NULL,
    PRIMARY KEY (round, client_id)) WITHOUT ROWID;
CREATE TABLE aggregate (
    id INTEGER PRIMARY KEY CHECK (id = 0), completed_rounds INTEGER NOT NULL, manifest BLOB NOT NULL,
    body BLOB NOT NULL);
"""


class SqliteStore(Store):
    """A store whose commits reach the disk before they return: WAL with `synchronous=FULL`, and bodies before rows."""

    def __init__(self, state_dir: Path, *, log_bytes: int = _LOG_BYTES) -> None:
        self._lock = _lock_directory(state_dir)
        self._path = state_dir / DATABASE_NAME
        self._bodies = BodyLog(state_dir / BODIES_NAME)
        self._file_id: tuple[int, int] | None = None
        self._depth = 0
        self._lost: BaseException | None = None
        try:
            self._db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            try:
                self._prepare(log_bytes)
            except BaseException:
                self._close_files()
                raise
        except sqlite3.DatabaseError as error:
            self._lock.release()
            raise StoreError(
                f"{self._path} cannot be used: {error}; restore it from a backup or move it away"
            ) from error
        except BaseException:
            self._lock.release()
            raise

    def _prepare(self, log_bytes: int) -> None:
        fresh = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        if not fresh:
            self._check_format()  # before anything is written: the file may not be ours
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        # checkpoints are left to `tidy`, since a commit in the middle of a round should not wait for one
        pages = max(1, log_bytes // self._pragma("page_size"))
        self._db.execute(f"PRAGMA wal_autocheckpoint = {pages}")
        if fresh:
            with self.transaction():
                for statement in _SCHEMA.strip().split(";\n"):
                    self._db.execute(statement.removesuffix(";"))
                self._db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                self._db.execute(f"PRAGMA user_version = {FORMAT}")

    def _check_format(self) -> None:
        check_is_ours(self._db, self._path)
        found = self._pragma("user_version")
        if found > FORMAT:
            raise StoreError(f"{self._path} {describe_newer(self._db, found)}")

    def open_run(self, run_id: str, config_json: str) -> str:
        row = self._db.execute("SELECT run_id, config FROM run").fetchone()
        if row is not None and row[1] != config_json and self._has_clients():
            refuse_other_run(stored=row[1], given=config_json)
        with self.transaction():
            # only now: a start that is refused leaves the database to the version that wrote it
            upgrade(self._db, self._pragma("user_version"))
            # later than the format, which does not change: earlier versions need not know it
            self._db.execute(f"CREATE TABLE IF NOT EXISTS {OPTIONS_TABLE} (id INTEGER PRIMARY KEY, options TEXT)")
            self._db.execute(_SUM_RECORDS)
            self._restore_bodies()
            if row is not None and row[1] != config_json:
                self._db.execute("DELETE FROM run")
                row = None
            if row is None:
                self._db.execute("INSERT INTO run VALUES (0, ?, ?, NULL, ?)", (run_id, config_json, VERSION))
                return run_id
            self._db.execute("UPDATE run SET software_version = ?", (VERSION,))
        return str(row[0])

    def stored_config(self) -> str | None:
        row = self._db.execute("SELECT config FROM run").fetchone()
        return str(row[0]) if row is not None and self._has_clients() else None

    def _has_clients(self) -> bool:
        return self._db.execute("SELECT 1 FROM client LIMIT 1").fetchone() is not None

    def replace_config(self, config_json: str) -> None:
        self._db.execute("UPDATE run SET config = ?", (config_json,))

    def save_options(self, options_json: str) -> None:
        self._db.execute(f"INSERT OR REPLACE INTO {OPTIONS_TABLE} VALUES (0, ?)", (options_json,))  # noqa: S608 - fixed

    def _restore_bodies(self) -> None:
        rows = self._db.execute(
            "SELECT client_id, round, sha256, start, length FROM upload WHERE start IS NOT NULL"
        ).fetchall()
        try:
            self._bodies.restore((BodyKey(*row[:3]), Place(*row[3:])) for row in rows)
        except sqlite3.DatabaseError as error:
            raise StoreError(
                f"{self._path.parent} cannot be resumed: {error}; restore both from one copy of the state directory, "
                "or a backup"
            ) from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        nested = self._depth > 0
        self._check_not_lost()
        mark = self._bodies.mark()
        self._db.execute("SAVEPOINT step" if nested else "BEGIN IMMEDIATE")
        self._depth += 1
        try:
            yield
            self._check_not_lost()
            if not nested:
                self._check_in_place()
                self._bodies.sync()
            self._db.execute("RELEASE step" if nested else "COMMIT")
            if not nested:
                self._bodies.commit()
        except BaseException as error:
            self._bodies.rollback(mark)
            # also after a commit that failed: left open, it would swallow every later write
            if self._db.in_transaction:
                for statement in ("ROLLBACK TO step", "RELEASE step") if nested else ("ROLLBACK",):
                    self._db.execute(statement)
            elif nested:
                self._lost = error
            raise
        finally:
            self._depth -= 1
            if not nested:
                self._lost = None

    def _in_transaction(self) -> AbstractContextManager[None]:
        """The transaction that is open, or one of its own: what goes to both files needs one."""
        return nullcontext() if self._depth else self.transaction()

    def _check_in_place(self) -> None:
        """Fails if the file was removed or replaced: it would still accept writes, and be lost with this process."""
        try:
            found = self._path.stat()
        except OSError as error:
            raise sqlite3.OperationalError(f"{DATABASE_NAME}: {error.strerror}") from error
        if self._file_id is None:
            self._file_id = (found.st_dev, found.st_ino)
        if self._file_id != (found.st_dev, found.st_ino):
            raise sqlite3.OperationalError(f"{DATABASE_NAME} is another file than at the start")

    def _check_not_lost(self) -> None:
        """On some errors, e.g. a full disk, SQLite rolls back the whole transaction, the outer one included."""
        if self._lost is not None:
            raise self._lost

    def snapshot(self) -> str | None:
        row = self._db.execute("SELECT progress FROM run").fetchone()
        return None if row is None else row[0]

    def save_snapshot(self, snapshot: str) -> None:
        self._db.execute("UPDATE run SET progress = ?", (snapshot,))

    def add_new_member(self, client_id: int) -> None:
        self._db.execute("INSERT OR IGNORE INTO new_member VALUES (?)", (client_id,))

    def new_members(self) -> frozenset[int]:
        return frozenset(row[0] for row in self._db.execute("SELECT client_id FROM new_member"))

    def forget_new_members(self, client_ids: Collection[int]) -> None:
        decided = self.new_members().intersection(client_ids)
        self._db.executemany("DELETE FROM new_member WHERE client_id = ?", [(number,) for number in decided])

    def touch(self) -> None:
        """Writes more than a page, for which the log may have room: enough for an upload to have a chance."""
        try:
            with tempfile.TemporaryFile(dir=self._path.parent, buffering=0) as scratch:
                if scratch.write(bytes(_ROOM)) != _ROOM:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise sqlite3.OperationalError(error.strerror) from error
        self._db.execute("UPDATE run SET progress = progress")

    def clients(self) -> list[ClientRecord]:
        rows = self._db.execute(
            "SELECT client_id, epoch, session_sha256, data, capabilities FROM client ORDER BY client_id"
        )
        return [ClientRecord(*row) for row in rows]

    def save_client(self, record: ClientRecord) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO client VALUES (?, ?, ?, ?, ?)",
            record,
        )

    def save_upload(self, record: UploadRecord, body: bytes) -> None:
        with self._in_transaction():
            place: Place | tuple[None, None] = (None, None)
            if len(body) > _INLINE_BYTES:
                place, body = self._bodies.append(_key(record), body), b""
            self._db.execute(
                "INSERT INTO upload (round, client_id, sha256, manifest, body, start, length) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (record.round, record.client_id, record.sha256, record.manifest, body, *place),
            )

    def uploads(self, round_number: int) -> list[UploadRecord]:
        return self._select_uploads("WHERE round = ? ORDER BY client_id", (round_number,))

    def upload(self, client_id: int, round_number: int) -> UploadRecord | None:
        return next(iter(self._select_uploads("WHERE client_id = ? AND round = ?", (client_id, round_number))), None)

    def last_upload_before(self, client_id: int, round_number: int) -> UploadRecord | None:
        clause = "WHERE client_id = ? AND round < ? ORDER BY round DESC LIMIT 1"
        return next(iter(self._select_uploads(clause, (client_id, round_number))), None)

    def upload_body(self, record: UploadRecord, limit: int | None = None) -> bytes:
        where = (record.round, record.client_id)
        row = self._db.execute(
            "SELECT id, start, length FROM upload WHERE round = ? AND client_id = ?", where
        ).fetchone()
        if row[1] is not None:
            return self._bodies.read(_key(record), Place(*row[1:]), limit)
        with self._db.blobopen("upload", "body", row[0], readonly=True) as blob:
            return blob.read(-1 if limit is None else limit)

    def forget_upload(self, client_id: int, round_number: int) -> None:
        self._delete_uploads("client_id = ? AND round = ?", (client_id, round_number))

    def forget_superseded_uploads(self, before_round: int) -> None:
        self._delete_uploads(
            "round < ?1 AND EXISTS (SELECT 1 FROM upload AS newer"
            " WHERE newer.client_id = upload.client_id AND newer.round > upload.round)",
            (before_round,),
        )

    def forget_from(self, round_number: int) -> None:
        with self.transaction():
            self._delete_uploads("round >= ?", (round_number,))
            self._db.execute("DELETE FROM report WHERE round >= ?", (round_number,))

    def _delete_uploads(self, condition: str, parameters: tuple[int, ...]) -> None:
        with self._in_transaction():
            deleted = self._db.execute(
                f"DELETE FROM upload WHERE {condition} RETURNING start, length",  # noqa: S608 - fixed conditions
                parameters,
            ).fetchall()
            for start, length in deleted:
                if start is not None:
                    self._bodies.release(Place(start, length))

    def tidy(self) -> None:
        """Moves the log into the database once it is worth two more waits for the disk."""
        with suppress(FileNotFoundError):
            if self._path.with_name(f"{DATABASE_NAME}-wal").stat().st_size >= _CHECKPOINT_BYTES:
                self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        self._bodies.trim()

    def save_report(self, record: ReportRecord) -> bool:
        cursor = self._db.execute(
            "INSERT OR IGNORE INTO report VALUES (?, ?, ?)", (record.round, record.client_id, record.metrics)
        )
        return cursor.rowcount == 1

    def reports(self, from_round: int = 0) -> Iterator[ReportRecord]:
        query = "SELECT client_id, round, metrics FROM report WHERE round >= ? ORDER BY round, client_id"
        for row in self._db.execute(query, (from_round,)):
            yield ReportRecord(*row)

    def save_sum_record(self, record: SumRecord) -> bytes:
        key = (record.round, record.step, _DECISION if record.client_id is None else record.client_id)
        self._db.execute("INSERT OR IGNORE INTO sum_record VALUES (?, ?, ?, ?)", (*key, record.body))
        query = "SELECT body FROM sum_record WHERE round = ? AND step = ? AND client_id = ?"
        return bytes(self._db.execute(query, key).fetchone()[0])

    def sum_records(self, round_number: int) -> list[SumRecord]:
        query = "SELECT round, step, client_id, body FROM sum_record WHERE round = ?"
        return [
            SumRecord(number, step, None if client_id == _DECISION else client_id, body)
            for number, step, client_id, body in self._db.execute(query, (round_number,))
        ]

    def forget_sum_records(self, before_round: int) -> None:
        self._db.execute("DELETE FROM sum_record WHERE round < ?", (before_round,))

    def aggregate(self) -> AggregateRecord | None:
        row = self._db.execute("SELECT completed_rounds, manifest, body FROM aggregate").fetchone()
        return None if row is None else AggregateRecord(*row)

    def save_aggregate(self, record: AggregateRecord) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO aggregate VALUES (0, ?, ?, ?)",
            record,
        )

    def close(self) -> None:
        self._close_files()
        self._lock.release()

    def _close_files(self) -> None:
        self._db.close()
        self._bodies.close()

    def _pragma(self, name: str) -> int:
        return int(self._db.execute(f"PRAGMA {name}").fetchone()[0])

    def _select_uploads(self, clause: str, parameters: tuple[int, ...]) -> list[UploadRecord]:
        rows = self._db.execute(f"SELECT client_id, round, sha256, manifest FROM upload {clause}", parameters)  # noqa: S608 - fixed clauses
        return [UploadRecord(*row) for row in rows]


def _key(record: UploadRecord) -> BodyKey:
    return BodyKey(record.client_id, record.round, record.sha256)


def _lock_directory(state_dir: Path) -> FileLock:
    """Locks the state directory: two servers on it would each close rounds unknown to the other."""
    if problem := directory_problem(state_dir):
        raise StateDirectoryError(state_dir, problem)
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateDirectoryError(state_dir, str(error.strerror)) from error
    try:
        return FileLock(state_dir / SERVER_LOCK_NAME, mode=0o600)
    except LockHeldError:
        raise StoreError(f"another server is using the state directory {state_dir}{_endpoint(state_dir)}") from None
    except OSError as error:
        raise StoreError(f"the state directory {state_dir} cannot be used: {error.strerror}") from error


def _endpoint(state_dir: Path) -> str:
    """Where the server on a state directory listens, as far as the directory tells."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        endpoint = json.loads((state_dir / ENDPOINT_NAME).read_text(encoding="utf-8"))
        address = join_address(endpoint["host"], endpoint["port"])
        return f"; {ENDPOINT_NAME} in it names {address}, process {endpoint['pid']}"
    return ""
