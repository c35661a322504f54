"""The thread that owns the store: jobs in order, commits in groups, results only once durable."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import store_records
from store_records import CONFIG, RUN_ID, client_record, upload_record, uploaded_clients

from feddbp_server.store import Announcement, MemoryStore, SqliteStore, Store, StoreWriter

Work = Callable[[Store], Any]


class Gate:
    """A job that blocks the thread, so that jobs given meanwhile form one group."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, _: Store) -> None:
        self.entered.set()
        assert self.opened.wait(20)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, 20)


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    opened = SqliteStore(tmp_path)
    opened.open_run(RUN_ID, CONFIG)
    return opened


@pytest.fixture
async def thread(store: SqliteStore) -> AsyncIterator[StoreWriter]:
    started = StoreWriter(store)
    yield started
    if started._thread.is_alive():
        await started.close()


def save(client_id: int, body: bytes = b"body") -> Work:
    return lambda store: store.save_upload(upload_record(client_id), body)


def save_large_row(client_id: int) -> Work:
    record = upload_record(client_id)._replace(manifest=bytes(1_000_000))
    return lambda store: store.save_upload(record, b"body")


def appending(number: int, *, to: list[int]) -> Work:
    return lambda _: to.append(number)


def fail_after(work: Work) -> Work:
    def job(store: Store) -> None:
        work(store)
        raise ZeroDivisionError

    return job


async def as_one_group(thread: StoreWriter, jobs: list[Work]) -> list[Any]:
    """What each job returns or raises when they are committed together."""
    gate = Gate()
    holding = asyncio.create_task(thread.run(gate))
    await gate.reached()
    tasks = [asyncio.create_task(thread.run(job)) for job in jobs]
    await asyncio.sleep(0)
    gate.opened.set()
    await holding
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_job_returns_or_raises_to_its_caller(thread: StoreWriter) -> None:
    assert await thread.run(lambda store: store.uploads(0)) == []
    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda _: 1 // 0)
    assert await thread.run(lambda _: 7) == 7


async def test_all_jobs_run_in_one_thread_that_is_not_the_loops(thread: StoreWriter) -> None:
    threads = await asyncio.gather(*(thread.run(lambda _: threading.get_ident()) for _ in range(20)))
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


async def test_jobs_run_in_the_order_in_which_they_are_given(thread: StoreWriter) -> None:
    done: list[int] = []
    await as_one_group(thread, [appending(number, to=done) for number in range(200)])
    assert done == list(range(200))


async def test_jobs_that_wait_together_share_one_commit(thread: StoreWriter, store: SqliteStore) -> None:
    statements: list[str] = []
    store._db.set_trace_callback(statements.append)
    await as_one_group(thread, [save(client) for client in range(50)])
    assert statements.count("COMMIT") == 2  # the gate's and theirs


async def test_a_group_has_a_limit(thread: StoreWriter, store: SqliteStore) -> None:
    statements: list[str] = []
    store._db.set_trace_callback(statements.append)
    await as_one_group(thread, [save(client) for client in range(130)])
    assert statements.count("COMMIT") == 1 + 3  # 64, 64 and 2


async def test_one_failing_job_does_not_fail_its_neighbours(thread: StoreWriter, tmp_path: Path) -> None:
    first, failed, last = await as_one_group(thread, [save(0), fail_after(save(1)), save(2)])
    assert (first, last) == (None, None)
    assert isinstance(failed, ZeroDivisionError)
    assert uploaded_clients(tmp_path) == [0, 2]


async def test_a_job_the_database_refuses_does_not_fail_its_neighbours(thread: StoreWriter, tmp_path: Path) -> None:
    results = await as_one_group(thread, [save(0), save(0), save(1)])
    assert isinstance(results[1], sqlite3.IntegrityError)
    assert (results[0], results[2]) == (None, None)
    assert uploaded_clients(tmp_path) == [0, 1]


async def test_what_a_finished_job_wrote_is_visible_to_other_connections(thread: StoreWriter, tmp_path: Path) -> None:
    async def write_and_look(client: int) -> bool:
        await thread.run(save(client))
        return client in uploaded_clients(tmp_path)

    assert all(await asyncio.gather(*(write_and_look(client) for client in range(30))))


async def test_a_job_is_not_finished_before_its_whole_group_is_committed(thread: StoreWriter, tmp_path: Path) -> None:
    holding, inside = Gate(), Gate()
    first = asyncio.create_task(thread.run(holding))
    await holding.reached()
    written = asyncio.create_task(thread.run(save(0)))
    beside = asyncio.create_task(thread.run(inside))
    await asyncio.sleep(0)
    holding.opened.set()
    await inside.reached()  # the save is done by now, but its group is not
    await first
    assert not written.done()
    assert uploaded_clients(tmp_path) == []
    inside.opened.set()
    await written
    assert uploaded_clients(tmp_path) == [0]
    await beside


async def test_a_commit_that_fails_fails_the_whole_group_and_nothing_after_it(
    thread: StoreWriter, store: SqliteStore, tmp_path: Path
) -> None:
    store._db.execute("PRAGMA foreign_keys = ON")
    store._db.execute("CREATE TABLE promise (upload REFERENCES upload (id) DEFERRABLE INITIALLY DEFERRED)")

    def break_a_promise(_: Store) -> None:
        store._db.execute("INSERT INTO promise VALUES (12345)")  # noticed only by COMMIT

    results = await as_one_group(thread, [save(0), break_a_promise, save(1), fail_after(save(2))])
    assert [type(result) for result in results] == [
        sqlite3.IntegrityError,
        sqlite3.IntegrityError,
        sqlite3.IntegrityError,
        ZeroDivisionError,
    ]
    assert uploaded_clients(tmp_path) == []
    await thread.run(save(3))
    assert uploaded_clients(tmp_path) == [3]


async def test_on_a_full_disk_no_job_succeeds_that_is_not_stored(
    thread: StoreWriter, store: SqliteStore, tmp_path: Path
) -> None:
    await thread.run(save(0))
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages + 3}")
    jobs = [save(1), save_large_row(2), save(3)]
    results = await as_one_group(thread, jobs)
    stored = uploaded_clients(tmp_path)
    assert isinstance(results[1], sqlite3.OperationalError)
    assert 2 not in stored
    for client, result in ((1, results[0]), (3, results[2])):
        assert result is not None or client in stored
    store._db.execute("PRAGMA max_page_count = 1000000")
    await thread.run(save_large_row(4))
    assert {0, 4} <= set(uploaded_clients(tmp_path))


async def test_a_cancelled_caller_affects_neither_its_job_nor_others(thread: StoreWriter, tmp_path: Path) -> None:
    gate = Gate()
    holding = asyncio.create_task(thread.run(gate))
    await gate.reached()
    abandoned = asyncio.create_task(thread.run(save(0)))
    kept = asyncio.create_task(thread.run(save(1)))
    await asyncio.sleep(0)
    abandoned.cancel()
    gate.opened.set()
    await kept
    await holding
    assert uploaded_clients(tmp_path) == [0, 1]
    with pytest.raises(asyncio.CancelledError):
        await abandoned


async def test_closing_finishes_waiting_jobs_and_releases_the_directory(thread: StoreWriter, tmp_path: Path) -> None:
    gate = Gate()
    holding = asyncio.create_task(thread.run(gate))
    await gate.reached()
    queued = [asyncio.create_task(thread.run(save(client))) for client in range(100)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(thread.close())
    await asyncio.sleep(0)
    gate.opened.set()
    await closing
    await asyncio.gather(holding, *queued)
    assert uploaded_clients(tmp_path) == list(range(100))
    SqliteStore(tmp_path).close()


# --- housekeeping ---


class Tidied(SqliteStore):
    """Records each housekeeping, and whether it was inside a transaction."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.in_transaction: list[bool] = []

    def tidy(self) -> None:
        self.in_transaction.append(self._db.in_transaction)
        super().tidy()


async def test_housekeeping_follows_its_job_outside_of_any_transaction(tmp_path: Path) -> None:
    store = Tidied(tmp_path)
    thread = StoreWriter(store)
    await thread.run(save(0))
    assert store.in_transaction == []
    await thread.tidy(save(1))
    await thread.close()
    assert store.in_transaction == [False]
    assert uploaded_clients(tmp_path) == [0, 1]


class CannotTidy(MemoryStore):
    def tidy(self) -> None:
        raise OSError("the disk is on fire")


async def test_housekeeping_that_fails_is_logged_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    thread = StoreWriter(CannotTidy())
    with caplog.at_level(logging.WARNING):
        await thread.tidy(lambda store: store.save_client(client_record(1)))
        clients = await asyncio.wait_for(thread.run(lambda store: store.clients()), timeout=5)
    await thread.close()
    assert clients == [client_record(1)]
    assert "the disk is on fire" in caplog.text


# --- kill -9 ---


def test_what_a_job_stored_survives_a_kill_right_after(tmp_path: Path) -> None:
    script = f"""
        import asyncio, os, sys
        from pathlib import Path
        sys.path.insert(0, {str(Path(store_records.__file__).parent)!r})
        from store_records import CONFIG, RUN_ID, upload_record
        from feddbp_server.store import SqliteStore, StoreWriter

        async def main():
            thread = StoreWriter(SqliteStore(Path({str(tmp_path)!r})))
            await thread.run(lambda store: store.open_run(RUN_ID, CONFIG))
            jobs = [
                thread.run(lambda store, client=client: store.save_upload(upload_record(client), bytes(50_000)))
                for client in range(40)
            ]
            pending = [asyncio.ensure_future(job) for job in jobs]
            await pending[20]
            reported = [client for client, task in enumerate(pending) if task.done()]
            os.write(1, repr(reported).encode())
            os._exit(9)

        asyncio.run(main())
    """
    died = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, timeout=60)
    assert died.returncode == 9, died.stderr.decode()
    reported = {int(client) for client in died.stdout.decode().strip("[]").split(",")}
    assert 20 in reported
    store = SqliteStore(tmp_path)
    stored = {record.client_id for record in store.uploads(0)}
    assert reported <= stored
    assert all(len(store.upload_body(record)) == 50_000 for record in store.uploads(0))
    store.close()


# --- jobs that were announced ---

LONG = 20.0
"""Seconds that no test waits for."""


class CountingStore(MemoryStore):
    """Counts its transactions; those inside others are not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.transactions = 0
        self.begun = threading.Event()
        self._is_open = False

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if self._is_open:
            yield
            return
        self.transactions += 1
        self._is_open = True
        self.begun.set()
        try:
            yield
        finally:
            self._is_open = False


async def test_announced_jobs_share_a_transaction_with_those_before_them() -> None:
    store = CountingStore()
    writer = StoreWriter(store, wait_seconds=LONG)
    first, second = Announcement(writer), Announcement(writer)
    earlier = asyncio.create_task(writer.run(lambda _: 1, first))
    await asyncio.to_thread(store.begun.wait)
    assert not earlier.done()
    assert tuple(await asyncio.gather(earlier, writer.run(lambda _: 2, second))) == (1, 2)
    assert store.transactions == 1
    await writer.close()


async def test_a_job_that_was_announced_and_does_not_come_delays_the_others_for_a_moment_only() -> None:
    writer = StoreWriter(CountingStore())
    first, lost = Announcement(writer), Announcement(writer)
    async with asyncio.timeout(10):
        assert await writer.run(lambda _: 1, first) == 1
    lost.end()
    lost.end()
    assert writer.announced == 0
    await writer.close()


async def test_a_group_waits_no_longer_for_a_job_that_is_given_up() -> None:
    store = CountingStore()
    writer = StoreWriter(store, wait_seconds=LONG)
    first, lost = Announcement(writer), Announcement(writer)
    job = asyncio.create_task(writer.run(lambda _: 1, first))
    await asyncio.to_thread(store.begun.wait)
    lost.end()
    assert await job == 1
    await writer.close()


async def test_a_job_that_was_not_announced_ends_the_wait_of_a_group_and_is_part_of_it() -> None:
    store = CountingStore()
    writer = StoreWriter(store, wait_seconds=LONG)
    first, other = Announcement(writer), Announcement(writer)
    job = asyncio.create_task(writer.run(lambda _: 1, first))
    await asyncio.to_thread(store.begun.wait)
    assert await writer.run(lambda _: 2) == 2
    assert await job == 1
    assert store.transactions == 1
    other.end()
    await writer.close()


async def test_jobs_that_were_not_announced_wait_for_nothing() -> None:
    store = CountingStore()
    writer = StoreWriter(store, wait_seconds=LONG)
    announced = Announcement(writer)
    assert [await writer.run(lambda _: 1), await writer.run(lambda _: 2)] == [1, 2]
    assert store.transactions == 2
    announced.end()
    await writer.close()


async def test_a_store_that_closes_while_a_group_waits_runs_what_it_has() -> None:
    store = CountingStore()
    writer = StoreWriter(store, wait_seconds=LONG)
    first, other = Announcement(writer), Announcement(writer)
    job = asyncio.create_task(writer.run(lambda _: 1, first))
    await asyncio.to_thread(store.begun.wait)
    await writer.close()
    assert await job == 1
    other.end()
