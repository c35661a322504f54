"""Properties of the SQLite back end only."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from earlier_versions import VERSION_0_1_0, restore
from store_records import (
    CONFIG,
    RUN_ID,
    aggregate_record,
    client_record,
    report_record,
    rows,
    upload_record,
)

from feddbp_common.artifacts import DATABASE_NAME
from feddbp_common.errors import ExitCode
from feddbp_common.version import VERSION
from feddbp_server.store import RunMismatchError, SqliteStore, StoreError
from feddbp_server.store.migrations import FORMAT, STEPS
from feddbp_server.store.stored_run import read_stored_run


def filled(directory: Path) -> SqliteStore:
    store = SqliteStore(directory)
    store.open_run(RUN_ID, CONFIG)
    store.save_snapshot("half way")
    store.save_client(client_record(3))
    store.add_new_member(5)
    store.save_upload(upload_record(3, 1), b"body" * 1000)
    store.save_report(report_record(3, 1))
    store.save_aggregate(aggregate_record(1))
    return store


def assert_filled(store: SqliteStore) -> None:
    assert store.open_run("another", CONFIG) == RUN_ID
    assert store.snapshot() == "half way"
    assert store.clients() == [client_record(3)]
    assert store.new_members() == {5}
    assert store.uploads(1) == [upload_record(3, 1)]
    assert store.upload_body(upload_record(3, 1)) == b"body" * 1000
    assert list(store.reports()) == [report_record(3, 1)]
    assert store.aggregate() == aggregate_record(1)


def test_everything_survives_closing_and_opening(tmp_path: Path) -> None:
    filled(tmp_path).close()
    reopened = SqliteStore(tmp_path)
    assert_filled(reopened)
    reopened.close()


def test_everything_survives_a_copy_of_the_directory_while_the_server_runs(tmp_path: Path) -> None:
    """A copy of database and log together is what a crash leaves behind."""
    store = filled(tmp_path / "live")
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in (tmp_path / "live").iterdir():
        if file.name.startswith(DATABASE_NAME) and not file.name.endswith("-shm"):
            (copy / file.name).write_bytes(file.read_bytes())
    store.close()
    reopened = SqliteStore(copy)
    assert_filled(reopened)
    reopened.close()


def test_the_state_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "a" / "b").close()
    assert (tmp_path / "a" / "b" / DATABASE_NAME).exists()


def test_the_log_reaches_the_disk_with_every_commit(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    assert store._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    store.close()


def test_the_log_does_not_grow_for_ever(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    store.open_run(RUN_ID, CONFIG)
    log = tmp_path / f"{DATABASE_NAME}-wal"
    sizes = []
    for number in range(12):
        store.save_upload(upload_record(0, number)._replace(manifest=os.urandom(2_000_000)), b"body")
        store.forget_superseded_uploads(number + 1)
        store.tidy()
        sizes.append(log.stat().st_size)
    store.close()
    assert max(sizes[6:]) <= 2 * max(sizes[:3])


def test_the_write_ahead_log_is_bounded_even_without_housekeeping(tmp_path: Path) -> None:
    """As in a run that is paused or waits for clients: joins are written, and no round closes."""
    bound = 1 << 20
    store = SqliteStore(tmp_path, log_bytes=bound)
    store.open_run(RUN_ID, CONFIG)
    log, largest = tmp_path / f"{DATABASE_NAME}-wal", 0
    for number in range(300):
        with store.transaction():
            store.save_client(client_record(number % 5))
            store.save_snapshot(f"join {number}")
        largest = max(largest, log.stat().st_size)
    assert bound <= largest <= 1.2 * bound
    store.close()
    reopened = SqliteStore(tmp_path)
    assert [record.client_id for record in reopened.clients()] == list(range(5))
    assert reopened.snapshot() == "join 299"
    reopened.close()


def test_no_commit_waits_for_a_checkpoint_in_the_middle_of_a_round(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    store.open_run(RUN_ID, CONFIG)
    database, before = tmp_path / DATABASE_NAME, (tmp_path / DATABASE_NAME).stat().st_size
    for number in range(40):
        store.save_upload(upload_record(number, 0)._replace(manifest=os.urandom(100_000)), b"body")
    assert database.stat().st_size == before
    store.tidy()
    assert database.stat().st_size > 40 * 100_000
    store.close()


# --- one owner ---


def test_a_second_server_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    first = SqliteStore(tmp_path)
    with pytest.raises(StoreError) as refusal:
        SqliteStore(tmp_path)
    assert str(refusal.value) == f"another server is using the state directory {tmp_path}"
    first.close()
    SqliteStore(tmp_path).close()


@pytest.mark.parametrize(
    ("endpoint", "named"),
    [
        ('{"host": "::1", "port": 50051, "pid": 4711}', "; endpoint.json in it names [::1]:50051, process 4711"),
        ('{"host": "127.0.0.1"}', ""),
        ("damaged", ""),
    ],
)
def test_the_server_on_a_directory_is_named_as_far_as_it_tells(endpoint: str, named: str, tmp_path: Path) -> None:
    first = SqliteStore(tmp_path)
    (tmp_path / "endpoint.json").write_text(endpoint)
    with pytest.raises(StoreError) as refusal:
        SqliteStore(tmp_path)
    assert str(refusal.value) == f"another server is using the state directory {tmp_path}{named}"
    first.close()


def test_a_second_process_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    first = SqliteStore(tmp_path)
    script = f"""
        from pathlib import Path
        from feddbp_server.store import SqliteStore, StoreError
        try:
            SqliteStore(Path({str(tmp_path)!r}))
        except StoreError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=True
    )
    first.close()
    assert "another server is using the state directory" in done.stdout


@pytest.mark.parametrize("obstacle", ["file", "parent is a file"])
def test_a_directory_that_cannot_be_created_is_named(tmp_path: Path, obstacle: str) -> None:
    (tmp_path / "taken").write_text("")
    wanted = tmp_path / "taken" if obstacle == "file" else tmp_path / "taken" / "state"
    with pytest.raises(StoreError) as refusal:
        SqliteStore(wanted)
    what = "it" if obstacle == "file" else tmp_path / "taken"
    assert str(refusal.value) == f"the state directory {wanted} cannot be used: {what} is a file; give a directory"
    assert refusal.value.exit_code == ExitCode.USAGE


# --- foreign files ---


def refused(directory: Path) -> str:
    with pytest.raises(StoreError) as refusal:
        SqliteStore(directory)
    assert refusal.value.exit_code == ExitCode.FAILURE
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


def test_a_file_that_is_not_a_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / DATABASE_NAME
    file.write_bytes(b"my thesis, the only copy" * 100)
    assert refused(tmp_path).startswith(f"{file} cannot be used: file is not a database; ")
    assert file.read_bytes() == b"my thesis, the only copy" * 100


def test_a_foreign_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / DATABASE_NAME
    with sqlite3.connect(file) as other:
        other.execute("CREATE TABLE recipes (name TEXT)")
    other.close()
    before = file.read_bytes()
    message = f"{file} is not a run of this server; move it away or give another --state-dir"
    assert refused(tmp_path) == message
    with pytest.raises(StoreError) as unread:
        read_stored_run(tmp_path)
    assert str(unread.value) == message
    assert file.read_bytes() == before


def test_the_empty_database_of_a_server_killed_at_its_start_holds_no_run(tmp_path: Path) -> None:
    (tmp_path / DATABASE_NAME).touch()
    assert read_stored_run(tmp_path) is None
    SqliteStore(tmp_path).close()


def test_a_damaged_database_is_refused_with_advice(tmp_path: Path) -> None:
    filled(tmp_path).close()
    file = tmp_path / DATABASE_NAME
    content = bytearray(file.read_bytes())
    content[100:4000] = bytes(3900)  # the first page beyond the header holds the schema
    file.write_bytes(content)
    assert "restore it from a backup or move it away" in refused(tmp_path)


def open_files_of(file: Path) -> list[str]:
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [target for link in links if (target := str(link.readlink())).startswith(str(file))]


@pytest.mark.parametrize("content", [b"my thesis, the only copy" * 100, b""], ids=["no database", "foreign database"])
def test_a_refused_file_is_closed(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / DATABASE_NAME
    file.write_bytes(content)
    if not content:
        with sqlite3.connect(file) as other:
            other.execute("CREATE TABLE recipes (name TEXT)")
        other.close()
    with pytest.raises(StoreError) as refusal:
        SqliteStore(tmp_path)
    assert refusal.value.__traceback__ is not None  # keeps the store, and with it a connection that was not closed
    assert open_files_of(file) == []


def test_a_database_of_a_later_version_is_refused_with_both_versions(tmp_path: Path) -> None:
    filled(tmp_path).close()
    with sqlite3.connect(tmp_path / DATABASE_NAME) as database:
        database.execute("UPDATE run SET software_version = '9.9.0'")
        database.execute("PRAGMA user_version = 99")
    database.close()
    text = refused(tmp_path)
    assert (
        f"was written by feddbp 9.9.0 (format 99); this is feddbp {VERSION}, which reads formats up to {FORMAT}" in text
    )
    assert "resume the run with the version that wrote it" in text


def test_a_later_database_whose_tables_are_unknown_is_refused_too(tmp_path: Path) -> None:
    filled(tmp_path).close()
    with sqlite3.connect(tmp_path / DATABASE_NAME) as database:
        database.execute("DROP TABLE run")
        database.execute("PRAGMA user_version = 99")
    database.close()
    assert "was written by a later version (format 99)" in refused(tmp_path)


def test_a_database_of_version_0_1_0_is_upgraded_in_place(tmp_path: Path) -> None:
    restore(VERSION_0_1_0 / "state" / "server", tmp_path)
    with sqlite3.connect(tmp_path / DATABASE_NAME) as database:
        run_id, config = database.execute("SELECT run_id, config FROM run").fetchone()
        uploads = database.execute("SELECT round, client_id, sha256 FROM upload ORDER BY id").fetchall()
    database.close()
    store = SqliteStore(tmp_path)
    assert store.open_run("another", config) == run_id
    store.close()
    with sqlite3.connect(tmp_path / DATABASE_NAME) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (FORMAT,)
        assert database.execute("SELECT software_version FROM run").fetchone() == (VERSION,)
        assert database.execute("SELECT round, client_id, sha256 FROM upload ORDER BY id").fetchall() == uploads
    database.close()


def test_a_database_of_version_0_1_0_stays_as_it_is_if_the_run_is_another(tmp_path: Path) -> None:
    restore(VERSION_0_1_0 / "state" / "server", tmp_path)
    store = SqliteStore(tmp_path)
    with pytest.raises(RunMismatchError):
        store.open_run("another", "{}")
    store.close()
    with sqlite3.connect(tmp_path / DATABASE_NAME) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (1,)
    database.close()


def test_every_earlier_format_has_its_step() -> None:
    assert set(STEPS) == set(range(1, FORMAT))


def test_a_refused_file_can_be_moved_away_and_the_directory_used(tmp_path: Path) -> None:
    file = tmp_path / DATABASE_NAME
    file.write_bytes(b"x" * 5000)
    refused(tmp_path)
    file.unlink()
    SqliteStore(tmp_path).close()


def test_a_start_that_was_killed_before_the_schema_was_written_is_resumed(tmp_path: Path) -> None:
    (tmp_path / DATABASE_NAME).touch()
    filled(tmp_path).close()
    assert_filled_again(tmp_path)


def assert_filled_again(directory: Path) -> None:
    store = SqliteStore(directory)
    assert_filled(store)
    store.close()


# --- transactions ---


def write_and_fail(store: SqliteStore, *clients: int) -> None:
    """A transaction that writes, also in nested ones, and is rolled back."""
    with store.transaction():
        store.save_snapshot("never")
        for client in clients:
            with store.transaction():
                store.save_client(client_record(client))
        raise ZeroDivisionError


def write_and_fail_to_commit(store: SqliteStore) -> None:
    """Violates a constraint that SQLite checks only at commit."""
    store._db.execute("PRAGMA foreign_keys = ON")
    store._db.execute("CREATE TABLE promise (upload REFERENCES upload (id) DEFERRABLE INITIALLY DEFERRED)")
    with store.transaction():
        store.save_snapshot("never")
        store._db.execute("INSERT INTO promise VALUES (12345)")


def test_a_transaction_is_all_or_nothing_with_those_inside_it(tmp_path: Path) -> None:
    store = filled(tmp_path)
    with pytest.raises(ZeroDivisionError):
        write_and_fail(store, 1, 2)
    assert_filled(store)
    store.close()


def test_a_nested_transaction_rolls_back_alone(tmp_path: Path) -> None:
    store = filled(tmp_path)
    with store.transaction():
        store.save_client(client_record(1))
        with pytest.raises(ZeroDivisionError):
            write_and_fail(store, 2)
        with store.transaction():
            store.save_client(client_record(4))
    assert [record.client_id for record in store.clients()] == [1, 3, 4]
    assert store.snapshot() == "half way"
    store.close()


def test_a_transaction_is_invisible_to_others_before_its_end(tmp_path: Path) -> None:
    store = filled(tmp_path)
    with store.transaction():
        with store.transaction():
            store.save_client(client_record(1))
        assert rows(tmp_path, "SELECT client_id FROM client") == [(3,)]
    assert rows(tmp_path, "SELECT client_id FROM client ORDER BY client_id") == [(1,), (3,)]
    store.close()


def test_a_client_has_one_upload_in_a_round(tmp_path: Path) -> None:
    store = filled(tmp_path)
    with pytest.raises(sqlite3.IntegrityError):
        store.save_upload(upload_record(3, 1, digest=9), b"another")
    assert store.upload_body(upload_record(3, 1)) == b"body" * 1000
    store.close()


def test_after_a_commit_that_failed_the_store_is_unchanged_and_usable(tmp_path: Path) -> None:
    store = filled(tmp_path)
    with pytest.raises(sqlite3.IntegrityError):
        write_and_fail_to_commit(store)
    assert_filled(store)
    with store.transaction():
        store.save_client(client_record(8))
    assert rows(tmp_path, "SELECT client_id FROM client ORDER BY client_id") == [(3,), (8,)]
    store.close()
