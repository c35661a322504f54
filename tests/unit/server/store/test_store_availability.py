"""A disk that is full for a while: nobody is lied to, nothing is lost, and the run goes on once there is room."""

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

from feddbp_server.rpc.interceptors import STATUS_OF
from feddbp_server.run.refusals import RefusedError
from feddbp_server.run.state_machine import Phase
from feddbp_server.store import MonitoredStore, SqliteStore, Store, StoreError, StoreWriter


class Disk:
    """Fills up and is emptied again at the word of a test."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    async def fill(self, thread: StoreWriter) -> None:
        await thread.run(self._limit_to_what_is_there)

    async def empty(self, thread: StoreWriter) -> None:
        await thread.run(lambda _: self._store._db.execute("PRAGMA max_page_count = 100000").fetchone())

    def _limit_to_what_is_there(self, _: object) -> None:
        pages = self._store._db.execute("PRAGMA page_count").fetchone()[0]
        self._store._db.execute(f"PRAGMA max_page_count = {pages}").fetchone()


def save(client_id: int) -> Callable[[Store], None]:
    return lambda store: store.save_upload(upload_record(client_id), bytes(200_000))


class Watched:
    """A watched store, what it told, and its disk."""

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
    """Looks for better days only where a test asks it to."""
    made = Watched(tmp_path, getattr(request, "param", timedelta(hours=1)))
    yield made
    await made.watched.stop_watching()
    await made.thread.close()


async def test_while_all_is_well_jobs_pass_as_they_are(watched: Watched, tmp_path: Path) -> None:
    await watched.watched.run(save(1))
    watched.watched.check()
    assert watched.watched.trouble == ""
    assert watched.changes == []
    assert uploaded_clients(tmp_path) == [1]


async def test_a_full_disk_is_noticed_named_and_told_once(watched: Watched) -> None:
    await watched.disk.fill(watched.thread)
    for client in (1, 2):
        with pytest.raises(StoreError, match="the state directory cannot be used: database or disk is full"):
            await watched.watched.run(save(client))
    assert "full" in watched.watched.trouble
    assert watched.changes == [watched.watched.trouble]
    with pytest.raises(StoreError, match="full"):
        watched.watched.check()


@pytest.mark.parametrize("watched", [timedelta(seconds=0.02)], indirect=True)
async def test_better_days_are_noticed_without_anyone_asking(watched: Watched, tmp_path: Path) -> None:
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


async def test_a_wrong_statement_or_a_broken_rule_is_no_trouble_of_the_disk(watched: Watched) -> None:
    await watched.watched.run(save(1))
    with pytest.raises(sqlite3.IntegrityError):
        await watched.watched.run(save(1))
    with pytest.raises(ZeroDivisionError):
        await watched.watched.run(lambda _: 1 // 0)
    assert watched.watched.trouble == ""


async def test_whoever_waits_for_better_days_is_let_go_when_the_server_goes(watched: Watched) -> None:
    await watched.disk.fill(watched.thread)
    with pytest.raises(StoreError):
        await watched.watched.run(save(1))
    waiting = asyncio.create_task(watched.watched.wait_until_writable())
    await asyncio.sleep(0)
    await watched.watched.stop_watching()
    await asyncio.wait_for(waiting, timeout=PATIENCE)


async def fill_the_last_page(server: Server) -> None:
    for number in range(1000, 1100):
        record = upload_record(0, number)
        await server.engine.store.run(lambda kept, record=record: kept.save_upload(record, bytes(20_000)))


async def test_a_run_outlives_a_full_disk(tmp_path: Path) -> None:
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
