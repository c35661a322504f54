"""The file of bodies: what a crash or a mistake leaves in it is never taken for an upload."""

from __future__ import annotations

import itertools
import os
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_records import CONFIG, RUN_ID, rows, upload_record

from feddbp_common.artifacts import BODIES_NAME, DATABASE_NAME
from feddbp_server.store import SqliteStore, StoreError
from feddbp_server.store.body_log import BLOCK, HEADER_BYTES, BodyKey, BodyLog, DamagedBodyError, Place


def body_of(client_id: int, number: int = 0, size: int = 10_000) -> bytes:
    return bytes([client_id + 1, number + 1]) * (size // 2)


def opened(directory: Path) -> SqliteStore:
    store = SqliteStore(directory)
    store.open_run(RUN_ID, CONFIG)
    return store


def save(store: SqliteStore, client_id: int, number: int = 0, size: int = 10_000) -> None:
    store.save_upload(upload_record(client_id, number), body_of(client_id, number, size))


def place_of(directory: Path, client_id: int, number: int = 0) -> Place:
    (row,) = rows(directory, f"SELECT start, length FROM upload WHERE client_id = {client_id} AND round = {number}")
    return Place(*row)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    made = opened(tmp_path)
    yield made
    made.close()


# --- recovery ---


def test_bodies_are_read_after_a_restart_and_new_ones_overwrite_none(tmp_path: Path, store: SqliteStore) -> None:
    for client in range(3):
        save(store, client)
    store.close()
    again = opened(tmp_path)
    save(again, 3)
    for client in range(4):
        assert again.upload_body(upload_record(client)) == body_of(client)
    again.close()


@pytest.mark.parametrize("written", [1, HEADER_BYTES - 1, HEADER_BYTES, BLOCK, 9_000])
def test_a_record_that_a_crash_has_torn_is_overwritten(tmp_path: Path, store: SqliteStore, written: int) -> None:
    """A crash between the write and the commit: the file has some first bytes of a record that no row names."""
    save(store, 0)
    end = place_of(tmp_path, 0).end
    save(store, 1)
    store.close()
    with (tmp_path / BODIES_NAME).open("r+b") as file:
        file.truncate(end + written)
    with sqlite3.connect(tmp_path / DATABASE_NAME) as database:
        database.execute("DELETE FROM upload WHERE client_id = 1")
    database.close()
    again = opened(tmp_path)
    save(again, 2)
    assert place_of(tmp_path, 2).start == end
    assert again.upload_body(upload_record(0)) == body_of(0)
    assert again.upload_body(upload_record(2)) == body_of(2)
    again.close()


def test_a_stale_record_is_free_after_a_restart(tmp_path: Path, store: SqliteStore) -> None:
    """Its row is deleted, its bytes are all there, and its header is valid."""
    for number in range(2):
        save(store, 0, number)
    store.forget_superseded_uploads(1)
    store.close()
    again = opened(tmp_path)
    save(again, 1, 1)
    assert place_of(tmp_path, 1, 1).start == 0
    assert again.upload_body(upload_record(0, 1)) == body_of(0, 1)
    again.close()


def test_a_row_whose_body_was_never_written_is_refused_at_the_start(tmp_path: Path, store: SqliteStore) -> None:
    """As after a disk that lost what it had acknowledged."""
    save(store, 0)
    save(store, 1)
    store.close()
    with (tmp_path / BODIES_NAME).open("r+b") as file:
        file.seek(place_of(tmp_path, 1).start)
        file.write(bytes(BLOCK))
    refused(tmp_path, "does not hold the upload of client 1 to round 1")


def test_a_file_of_bodies_that_is_missing_is_refused_at_the_start(tmp_path: Path, store: SqliteStore) -> None:
    save(store, 0)
    store.close()
    (tmp_path / BODIES_NAME).rename(tmp_path / "renamed")
    refused(tmp_path, f"{BODIES_NAME} is missing")
    (tmp_path / "renamed").rename(tmp_path / BODIES_NAME)
    opened(tmp_path).close()


def test_a_database_that_is_older_than_the_file_of_bodies_is_refused_at_the_start(
    tmp_path: Path, store: SqliteStore
) -> None:
    """As when only one of the two files is restored from a copy: the space was used again since."""
    save(store, 0, 0)
    store.close()
    copy = (tmp_path / DATABASE_NAME).read_bytes()
    again = opened(tmp_path)
    save(again, 0, 1)
    again.forget_superseded_uploads(1)
    save(again, 1, 1)  # where the first one was
    again.close()
    (tmp_path / DATABASE_NAME).write_bytes(copy)
    refused(tmp_path, "the two files belong together")


def refused(directory: Path, reason: str) -> None:
    store = SqliteStore(directory)
    with pytest.raises(StoreError) as refusal:
        store.open_run(RUN_ID, CONFIG)
    store.close()
    assert reason in str(refusal.value)
    assert "restore both from one copy of the state directory, or a backup" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_record_that_was_replaced_is_not_read_for_another(tmp_path: Path) -> None:
    log = BodyLog(tmp_path / BODIES_NAME)
    key, other = BodyKey(1, 0, bytes(32)), BodyKey(1, 1, bytes(32))
    place = log.append(key, b"x" * 5000)
    assert log.read(key, place) == b"x" * 5000
    with pytest.raises(DamagedBodyError):
        log.read(other, place)
    with pytest.raises(DamagedBodyError):
        log.read(key, Place(place.start, place.length - 1))
    log.close()


# --- transactions and space ---


def test_a_body_is_on_the_disk_before_its_row_is(
    tmp_path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[object]] = []
    real = os.fdatasync

    def fdatasync(fd: int) -> None:
        seen.append(rows(tmp_path, "SELECT client_id FROM upload"))
        real(fd)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with store.transaction():
        save(store, 0)
        save(store, 1)
    assert seen == [[]]  # one sync for both, before either row
    assert rows(tmp_path, "SELECT client_id FROM upload ORDER BY 1") == [(0,), (1,)]


def test_a_sync_that_fails_fails_the_transaction(
    tmp_path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fail)
        with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
            save(store, 0)
    assert rows(tmp_path, "SELECT client_id FROM upload") == []
    save(store, 0)
    assert store.upload_body(upload_record(0)) == body_of(0)


@pytest.mark.parametrize("failing", [1, 2], ids=["header", "body"])
def test_a_read_that_fails_is_a_failure_of_the_store_and_may_be_repeated(
    failing: int, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, 0)
    reads = itertools.count(1)
    real = os.pread

    def pread(fd: int, length: int, offset: int) -> bytes:
        if next(reads) == failing:
            raise OSError(5, "Input/output error")
        return real(fd, length, offset)

    monkeypatch.setattr(os, "pread", pread)
    with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
        store.upload_body(upload_record(0))
    assert store.upload_body(upload_record(0)) == body_of(0)


def test_space_of_a_deleted_upload_is_not_reused_before_the_deletion_is_committed(
    tmp_path: Path, store: SqliteStore
) -> None:
    save(store, 0, 0)
    save(store, 0, 1)
    with store.transaction():
        store.forget_superseded_uploads(1)
        save(store, 1, 1)
        assert store.upload_body(upload_record(0, 1)) == body_of(0, 1)
    assert place_of(tmp_path, 1, 1).start > place_of(tmp_path, 0, 1).start
    save(store, 2, 1)
    assert place_of(tmp_path, 2, 1).start == 0


def test_a_transaction_that_is_rolled_back_frees_and_keeps_space_as_before(tmp_path: Path, store: SqliteStore) -> None:
    save(store, 0, 0)
    save(store, 0, 1)
    with suppress(ZeroDivisionError), store.transaction():
        store.forget_superseded_uploads(1)
        save(store, 1, 1)
        raise ZeroDivisionError
    save(store, 2, 1)
    assert store.upload_body(upload_record(0, 0)) == body_of(0, 0)
    assert place_of(tmp_path, 2, 1).start == place_of(tmp_path, 0, 1).end


def test_the_file_has_room_for_two_rounds_and_never_more(tmp_path: Path, store: SqliteStore) -> None:
    record = Place(0, 10_000).end
    for number in range(10):
        for client in range(5):
            save(store, client, number)
        store.forget_superseded_uploads(number + 1)
        store.tidy()
        assert (tmp_path / BODIES_NAME).stat().st_size <= 2 * 5 * record


def test_a_long_free_end_is_given_back(tmp_path: Path, store: SqliteStore) -> None:
    save(store, 0, 0)
    for client in range(1, 3):
        save(store, client, 0, 40 << 20)
    for client in range(1, 3):
        save(store, client, 1)
    store.forget_superseded_uploads(1)
    save(store, 0, 1)
    store.forget_superseded_uploads(2)
    for client in range(3):  # back to the beginning of the file
        save(store, client, 2)
    store.forget_superseded_uploads(3)
    store.tidy()
    assert (tmp_path / BODIES_NAME).stat().st_size < 1 << 20
    for client in range(3):
        assert store.upload_body(upload_record(client, 2)) == body_of(client, 2)


def test_a_disk_without_room_fails_the_upload_alone(tmp_path: Path, store: SqliteStore) -> None:
    save(store, 0)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with store.transaction():
            with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
                save(store, 1, size=2 << 20)
            save(store, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert [row[0] for row in rows(tmp_path, "SELECT client_id FROM upload ORDER BY 1")] == [0, 2]
    assert store.upload_body(upload_record(2)) == body_of(2)


def test_a_file_of_bodies_that_is_replaced_while_the_server_runs_is_noticed(tmp_path: Path, store: SqliteStore) -> None:
    save(store, 0)
    (tmp_path / BODIES_NAME).unlink()
    (tmp_path / BODIES_NAME).touch()
    with pytest.raises(sqlite3.OperationalError, match="another file than at the start"):
        save(store, 1)


@settings(max_examples=60)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["append", "release", "commit", "rollback"]), st.integers(0, 60_000)), max_size=40
    )
)
def test_no_two_records_share_a_block(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]) -> None:
    log = BodyLog(tmp_path_factory.mktemp("log") / BODIES_NAME)
    kept: dict[BodyKey, Place] = {}
    pending, gone = dict(kept), dict(kept)
    for number, (step, size) in enumerate(steps):
        if step == "append":
            key = BodyKey(number, 0, bytes(32))
            pending[key] = log.append(key, bytes([number % 256]) * size)
        elif step == "release" and kept.keys() - gone.keys():
            key = sorted(kept.keys() - gone.keys())[size % len(kept.keys() - gone.keys())]
            gone[key] = kept[key]
            log.release(kept[key])
        elif step == "commit":
            log.commit()
            kept = {key: place for key, place in {**kept, **pending}.items() if key not in gone}
            pending, gone = {}, {}
        elif step == "rollback":
            log.rollback((0, 0))
            pending, gone = {}, {}
        for key, place in {**kept, **pending}.items():
            assert log.read(key, place) == bytes([key.client_id % 256]) * place.length
    log.close()
