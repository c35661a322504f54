"""What tasks of the server's event loop share: the signal of a change, and tasks that outlive their caller."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

log = logging.getLogger("feddbp.server")
T = TypeVar("T")


class Broadcast:
    """Wakes every task that waits for the next change.

    Take `upcoming()` before reading the state and wait for it after: no change in between is missed.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def publish(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    def upcoming(self) -> asyncio.Event:
        return self._event


class BackgroundTasks:
    """Owns tasks that are completed before the server stops, whatever becomes of the call that began them."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs work that nothing awaits, as a task that `settled` waits for; its failure is logged."""
        task = self.begin_for_caller(work)
        task.add_done_callback(_log_failure)
        return task

    def begin_for_caller(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs work whose failure is raised at a caller, who may be gone by then."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    async def run_shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs work shielded from the caller's cancellation, so that what became durable is also applied."""
        return await asyncio.shield(self.begin_for_caller(work))

    async def settled(self) -> None:
        """Returns once no task is running, including those that others have begun meanwhile."""
        while self._running:
            await asyncio.wait(list(self._running))

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:  # raised where it is awaited, if it still is
            log.debug("a task of the run has failed", exc_info=task.exception())


def _log_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a task in the background has failed", exc_info=error)
