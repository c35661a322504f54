"""The one thread that owns the store: it commits jobs in groups, and its failures are monitored.

Every write is a job; all jobs that are waiting when the thread is free share one transaction and so one wait for the
disk. A job's future is done only when that transaction is: what it wrote is durable by then.

Uploads are announced while they are being received: a transaction of uploads alone stays open for the others for a few
milliseconds, since a wait for the disk costs more than most of them.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from feddbp_server.store.interface import Store, StoreError

T = TypeVar("T")
log = logging.getLogger("feddbp.server")
_GROUP_JOBS: Final = 64
_WAITING_JOBS: Final = 32
"""A group of this size waits for no others: those that were received by then would wait, too."""
_WAIT_SECONDS: Final = 0.02
"""For announced jobs, from the first job of a group on."""


class Announcement:
    """A job that a caller will run soon; ends with the job, or without it."""

    def __init__(self, writer: StoreWriter) -> None:
        self._writer: StoreWriter | None = writer
        writer.announced += 1

    def end(self) -> None:
        """May be called again."""
        if self._writer is not None:
            self._writer.announced -= 1
            self._writer.wake_if_due()
            self._writer = None


@dataclass(frozen=True)
class _Job:
    work: Callable[[Store], Any]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    waits: bool
    """Whether it was announced, and may wait for others that are."""

    def settle(self, result: Any, error: BaseException | None) -> None:
        """To be called on the event loop."""
        if self.future.cancelled():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


_Result: TypeAlias = tuple[_Job, Any, BaseException | None]


class StoreWriter:
    """Runs jobs on the store in the order they were given."""

    def __init__(self, store: Store, *, wait_seconds: float = _WAIT_SECONDS) -> None:
        self._store = store
        self._wait_seconds = wait_seconds
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closing = False
        self.announced = 0
        """Jobs to come; changed on the event loop, and read by the thread."""
        self._due = threading.Event()
        """The jobs that have arrived wait for no others. The thread is woken by this and not by every job: it would
        take turns with the event loop's thread."""
        self._tidy_up = threading.Event()
        # daemon: must not keep a server alive that failed before it served; nothing was accepted by then
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[Store], T], announced: Announcement | None = None) -> T:
        """Runs a job in the store's thread; returns once it is durable."""
        if self._closing:
            raise StoreError("the store is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put(_Job(work, future, loop, waits=announced is not None))
        if announced is None:
            self._due.set()
        else:
            announced.end()
        return await future

    def wake_if_due(self) -> None:
        """Ends the wait for announced jobs once there are none left, or many have arrived."""
        if not self.announced or self._jobs.qsize() >= _WAITING_JOBS:
            self._due.set()

    async def tidy(self, work: Callable[[Store], None]) -> None:
        """Runs a job, then the store's housekeeping, which cannot be part of a transaction."""
        self._tidy_up.set()
        await self.run(work)

    async def close(self) -> None:
        """Runs the jobs that are waiting, then closes the store."""
        self._closing = True
        self._jobs.put(None)
        self._due.set()
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        stopping = False
        while not stopping:
            group, stopping = self._taken(self._jobs.get())
            if group:
                self._commit(group)
            if self._tidy_up.is_set() and self._jobs.empty():
                self._tidy_up.clear()
                try:
                    self._store.tidy()
                except Exception as error:  # no job depends on it, and the next round tries again
                    log.warning("housekeeping of the store failed: %s", error)
        self._store.close()

    def _taken(self, *first: _Job | None) -> tuple[list[_Job], bool]:
        """Takes all jobs that are waiting, after the first if it was taken; and whether the store closes after them."""
        self._due.clear()  # what arrives from here on sets it again
        taken = list(first)
        with suppress(queue.Empty):
            while taken[-1:] != [None] and len(taken) < _GROUP_JOBS:
                taken.append(self._jobs.get_nowait())
        return [job for job in taken if job is not None], None in taken

    def _commit(self, group: list[_Job]) -> None:
        results: list[_Result] = []
        try:
            with self._store.transaction():
                results += map(self._result_of, group)
                for job in self._announced_jobs(group):
                    group.append(job)
                    results.append(self._result_of(job))
        except Exception as error:  # the whole group was rolled back, or never begun
            causes = {id(job): cause for job, _, cause in results}
            results = [(job, None, causes.get(id(job)) or error) for job in group]
        _deliver(results)

    def _announced_jobs(self, group: list[_Job]) -> Iterator[_Job]:
        """Jobs that join a group of uploads; any other job ends the wait for them."""
        deadline = time.monotonic() + self._wait_seconds
        in_time = True
        while in_time and self.announced and len(group) < _WAITING_JOBS and all(job.waits for job in group):
            in_time = self._due.wait(max(0.0, deadline - time.monotonic()))
            arrived, closing = self._taken()
            if closing:
                self._jobs.put(None)  # the store is closed after this group
                in_time = False
            yield from arrived

    def _result_of(self, job: _Job) -> _Result:
        try:
            with self._store.transaction():
                return job, job.work(self._store), None
        except Exception as error:  # only this job fails; the rest of the group commits
            return job, None, error


def _deliver(results: list[_Result]) -> None:
    """Settles a group with one wake-up of its event loop, and of every other one that has a job in it."""

    def settle(loop: asyncio.AbstractEventLoop) -> None:
        for job, result, error in results:
            if job.loop is loop:
                job.settle(result, error)

    for loop in {job.loop for job, _, _ in results}:
        loop.call_soon_threadsafe(settle, loop)


class Jobs(Protocol):
    """Runs jobs in the store's thread."""

    async def run(self, work: Callable[[Store], T]) -> T:
        """Runs a job; returns once it is durable."""


class MonitoredStore:
    """A store's thread that raises `StoreError` when the disk fails, and notices when it is writable again.

    While it is not, calls are refused with a request to retry, events of the run itself wait, and no accepted upload is
    lost.
    """

    def __init__(
        self, thread: StoreWriter, *, changed: Callable[[], None], pause: timedelta = timedelta(seconds=2)
    ) -> None:
        self.trouble = ""
        """Why the store is not writable; empty while it is."""
        self._thread = thread
        self._changed = changed
        self._pause = pause
        self._writable = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    def announce(self) -> Announcement:
        """Announces a job, which then shares its transaction with others that were announced."""
        return Announcement(self._thread)

    async def run(self, work: Callable[[Store], T], announced: Announcement | None = None) -> T:
        try:
            return await self._thread.run(work, announced)
        except sqlite3.Error as error:
            raise self._translated(error) from error

    async def tidy(self, work: Callable[[Store], None]) -> None:
        try:
            await self._thread.tidy(work)
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def check(self) -> None:
        """Raises while the store is not writable, before a caller sends bytes that could not be stored."""
        if self.trouble:
            raise StoreError(self.trouble)

    async def wait_until_writable(self) -> None:
        """Returns once the store is writable, or no longer watched."""
        await self._writable.wait()

    async def stop_watching(self) -> None:
        """Stops probing the store, and wakes tasks waiting for it to become writable."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None
        self._writable.set()

    def _translated(self, error: sqlite3.Error) -> Exception:
        """A failure as the caller sees it; the first storage failure starts probing."""
        if not _is_storage_failure(error):
            return error
        if not self.trouble:
            self.trouble = f"the state directory cannot be used: {error}"
            self._writable.clear()
            self._watching = asyncio.create_task(self._watch())
            self._changed()
        return StoreError(f"the state directory cannot be used: {error}")

    async def _watch(self) -> None:
        while self.trouble:
            await asyncio.sleep(self._pause.total_seconds())
            try:
                await self._thread.run(lambda store: store.touch())
            except sqlite3.Error:
                continue
            self.trouble = ""
            self._watching = None
            self._writable.set()
            self._changed()


def _is_storage_failure(error: sqlite3.Error) -> bool:
    """A full or broken disk or a damaged file; not a wrong statement or a violated constraint."""
    return isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError
