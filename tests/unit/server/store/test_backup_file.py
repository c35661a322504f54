"""A backup is one database with the bodies inside, also of a server that is writing."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
from earlier_versions import VERSION_0_1_0, restore
from store_records import CONFIG, RUN_ID, upload_record

from feddbp_common.artifacts import DATABASE_NAME
from feddbp_server.store import SqliteStore, StoreError
from feddbp_server.store.backup import write_backup


def body_of(client_id: int, number: int) -> bytes:
    return bytes([client_id + 1, number % 256]) * 5000


def close_rounds(store: SqliteStore, rounds: range) -> None:
    for number in rounds:
        with store.transaction():
            for client in range(4):
                store.save_upload(upload_record(client, number), body_of(client, number))
            store.save_snapshot(str(number))
        store.forget_superseded_uploads(number + 1)


def restored(copy: Path, directory: Path) -> SqliteStore:
    directory.mkdir()
    copy.rename(directory / DATABASE_NAME)
    store = SqliteStore(directory)
    store.open_run(RUN_ID, CONFIG)
    return store


def test_a_server_starts_from_a_backup_alone(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "live")
    store.open_run(RUN_ID, CONFIG)
    close_rounds(store, range(3))
    write_backup(tmp_path / "live", tmp_path / "copy")
    store.close()
    again = restored(tmp_path / "copy", tmp_path / "restored")
    assert again.snapshot() == "2"
    assert [again.upload_body(upload_record(client, 2)) for client in range(4)] == [body_of(c, 2) for c in range(4)]
    close_rounds(again, range(3, 5))
    assert again.upload_body(upload_record(1, 4)) == body_of(1, 4)
    again.close()


def test_a_backup_is_of_one_moment_while_rounds_are_closing(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "live")
    store.open_run(RUN_ID, CONFIG)
    close_rounds(store, range(2))
    over = threading.Event()

    def go_on() -> None:
        number = 2
        while not over.is_set():
            close_rounds(store, range(number, number + 1))
            number += 1

    server = threading.Thread(target=go_on)
    server.start()
    try:
        for attempt in range(3):
            write_backup(tmp_path / "live", tmp_path / f"copy-{attempt}")
    finally:
        over.set()
        server.join()
    store.close()
    for attempt in range(3):
        again = restored(tmp_path / f"copy-{attempt}", tmp_path / f"restored-{attempt}")
        number = int(again.snapshot() or 0)
        for client in range(4):
            assert again.upload_body(upload_record(client, number)) == body_of(client, number)
        again.close()


def test_a_run_of_an_earlier_version_can_be_backed_up(tmp_path: Path) -> None:
    restore(VERSION_0_1_0 / "state" / "server", tmp_path / "live")
    write_backup(tmp_path / "live", tmp_path / "copy")
    with sqlite3.connect(tmp_path / "copy") as copy:
        sizes = copy.execute("SELECT length(body) FROM upload").fetchall()
    copy.close()
    assert sizes
    assert all(size > 0 for (size,) in sizes)


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"has no run\.sqlite3; give the --state-dir of a server"):
        write_backup(tmp_path, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    with pytest.raises(StoreError, match="cannot be used: File name too long"):
        write_backup(tmp_path / ("x" * 300), tmp_path / "copy")
