"""A disk that is full for a while: no false success, no loss, and the run continues once there is room."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from coordinator_runs import PATIENCE, Server, join_all
from run_machine import ids
from store_records import CONFIG, RUN_ID, upload_record, uploaded_clients

from feddbp_server.rpc.status_codes import STATUS_OF
from feddbp_server.run.admission.refusals import RefusedError
from feddbp_server.run.state_machine.state import Phase
from feddbp_server.store import MonitoredStore, SqliteStore, Store, StoreError, StoreWriter


class Disk:
    """A disk that a test can fill and empty."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    async def fill(self, thread: StoreWriter) -> None:
        await thread.run(self._limit_to_what_is_there)

    async def empty(self, thread: StoreWriter) -> None:
        await thread.run(lambda _: self._store._db.execute("PRAGMA max_page_count = 100000").fetchone())

    def _limit_to_what_is_there(self, _: object) -> None:
        pages = self._store._db.execute("PRAGMA page_count").fetchone()[0]
        self._store._db.execute(f"PRAGMA max_page_count = {pages}").fetchone()


def save(client_id: int, *, round_number: int = 0, size: int = 200_000) -> Callable[[Store], None]:
    """A row of this size: bodies are in another file."""
    record = upload_record(client_id, round_number)._replace(manifest=bytes(size))
    return lambda store: store.save_upload(record, b"body")


class Watched:
    """A monitored store, its notifications, and its disk."""

    def __init__(self, directory: Path, pause: timedelta) -> None:
        self.store = SqliteStore(directory)
        self.store.open_run(RUN_ID, CONFIG)
        self.thread = StoreWriter(self.store)
        self.changes: list[str] = []
        self.watched = MonitoredStore(self.thread, changed=self._changed, pause=pause)
        self.disk = Disk(self.store)

    def _changed(self) -> None:
        self.changes.append(self.watched.trouble)


@pytest.fixture
async def watched(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Watched]:
    """A store that is probed only where a test sets a short interval."""
    made = Watched(tmp_path, getattr(request, "param", timedelta(hours=1)))
    yield made
    await made.watched.stop_watching()
    await made.thread.close()


async def test_while_the_store_is_writable_jobs_are_unchanged(watched: Watched, tmp_path: Path) -> None:
    await watched.watched.run(save(1))
    watched.watched.check()
    assert watched.watched.trouble == ""
    assert watched.changes == []
    assert uploaded_clients(tmp_path) == [1]


async def test_a_full_disk_is_reported_once_with_its_cause(watched: Watched) -> None:
    await watched.disk.fill(watched.thread)
    for client in (1, 2):
        with pytest.raises(StoreError, match="the state directory cannot be used: database or disk is full"):
            await watched.watched.run(save(client))
    assert "full" in watched.watched.trouble
    assert watched.changes == [watched.watched.trouble]
    with pytest.raises(StoreError, match="full"):
        watched.watched.check()


@pytest.mark.parametrize("watched", [timedelta(seconds=0.02)], indirect=True)
async def test_a_store_that_is_writable_again_is_noticed_without_a_call(watched: Watched, tmp_path: Path) -> None:
    await watched.disk.fill(watched.thread)
    with pytest.raises(StoreError):
        await watched.watched.run(save(1))
    await watched.disk.empty(watched.thread)
    await asyncio.wait_for(watched.watched.wait_until_writable(), timeout=PATIENCE)
    assert watched.watched.trouble == ""
    assert watched.changes[-1] == ""
    watched.watched.check()
    await watched.watched.run(save(1))
    assert uploaded_clients(tmp_path) == [1]


async def test_a_wrong_statement_or_a_violated_constraint_is_not_a_storage_failure(watched: Watched) -> None:
    await watched.watched.run(save(1))
    with pytest.raises(sqlite3.IntegrityError):
        await watched.watched.run(save(1))
    with pytest.raises(ZeroDivisionError):
        await watched.watched.run(lambda _: 1 // 0)
    assert watched.watched.trouble == ""


async def test_tasks_waiting_for_a_writable_store_are_woken_when_watching_stops(watched: Watched) -> None:
    await watched.disk.fill(watched.thread)
    with pytest.raises(StoreError):
        await watched.watched.run(save(1))
    waiting = asyncio.create_task(watched.watched.wait_until_writable())
    await asyncio.sleep(0)
    await watched.watched.stop_watching()
    await asyncio.wait_for(waiting, timeout=PATIENCE)


async def fill_the_last_page(server: Server) -> None:
    for number in range(1000, 1100):
        await server.engine.store.run(save(0, round_number=number, size=20_000))


async def test_a_run_survives_a_full_disk(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    async with Server(store, tmp_path) as server:
        disk = Disk(store)
        daemons = await join_all(server)
        await daemons[0].work(0)
        await disk.fill(server.thread)
        with pytest.raises(StoreError):
            await fill_the_last_page(server)
        assert "full" in server.engine.storage_trouble
        with pytest.raises(RefusedError) as refusal:
            await daemons[1].upload(0)
        assert STATUS_OF[refusal.value.details.reason] is grpc.StatusCode.UNAVAILABLE
        assert server.engine.state.uploaded == ids(0)
        await disk.empty(server.thread)
        await asyncio.wait_for(server.engine.store.wait_until_writable(), timeout=PATIENCE)
        for daemon in daemons[1:]:
            await daemon.work(0)
        await server.until_round(1)
        assert server.phase is Phase.COLLECTING
