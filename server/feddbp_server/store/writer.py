"""The one thread that owns the store, and commits in groups.

Every write is a job; whatever jobs are waiting when the thread comes round share one transaction and so one wait
for the disk. A job's future is done only once that transaction is: what it wrote is durable by then.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from feddbp_server.store.interface import Store, StoreError

T = TypeVar("T")
log = logging.getLogger("feddbp.server")
_MAX_GROUP: Final = 64


@dataclass(frozen=True)
class _Job:
    work: Callable[[Store], Any]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop

    def settle(self, result: Any = None, error: BaseException | None = None) -> None:
        def deliver() -> None:
            if self.future.cancelled():
                return
            if error is not None:
                self.future.set_exception(error)
            else:
                self.future.set_result(result)

        self.loop.call_soon_threadsafe(deliver)


class StoreWriter:
    """Runs jobs on the store in the order they were given."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closing = False
        self._tidy_up = threading.Event()
        # a server that fails before it serves must not be kept alive by it; nothing is accepted by then
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[Store], T]) -> T:
        """Does `work` in the store's thread; returns once it is durable."""
        if self._closing:
            raise StoreError("the store is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put(_Job(work, future, loop))
        return await future

    async def tidy(self, work: Callable[[Store], None]) -> None:
        """Does `work`, then the store's housekeeping, which cannot be part of a transaction."""
        self._tidy_up.set()
        await self.run(work)

    async def close(self) -> None:
        """Finishes what was given, then closes the store."""
        self._closing = True
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        stopping = False
        while not stopping:
            group, stopping = self._next_group()
            if group:
                self._commit(group)
            if self._tidy_up.is_set() and self._jobs.empty():
                self._tidy_up.clear()
                try:
                    self._store.tidy()
                except Exception as error:  # whoever has jobs must not suffer for it; the next round tries again
                    log.warning("the store could not be tidied up: %s", error)
        self._store.close()

    def _next_group(self) -> tuple[list[_Job], bool]:
        job = self._jobs.get()
        group: list[_Job] = []
        while job is not None:
            group.append(job)
            if len(group) == _MAX_GROUP:
                return group, False
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return group, False
        return group, True

    def _commit(self, group: list[_Job]) -> None:
        results: list[tuple[_Job, Any]] = []
        failures: list[tuple[_Job, BaseException]] = []
        try:
            with self._store.transaction():
                for job in group:
                    try:
                        with self._store.transaction():
                            results.append((job, job.work(self._store)))
                    except Exception as error:  # one job's failure is its own; the rest of the group stands
                        failures.append((job, error))
        except Exception as error:  # nothing of the group is on disk
            failures.extend((job, error) for job, _ in results)
            results.clear()
        for job, result in results:
            job.settle(result)
        for job, cause in failures:
            job.settle(error=cause)
