"""Timers, wake-ups and background tasks of a run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar


class Timer:
    """Rings once at the moment it was last set to; set to none, it does not ring."""

    def __init__(self, ring: Callable[[], None], clock: Callable[[], float]) -> None:
        self._ring = ring
        self._clock = clock
        self._handle: asyncio.TimerHandle | None = None

    def set(self, moment: float | None) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if moment is not None:
            delay = max(0.0, moment - self._clock())
            self._handle = asyncio.get_running_loop().call_later(delay, self._ring)


class Broadcast:
    """Take `upcoming()` before looking at the state and wait for it after: no change in between is missed."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def publish(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    def upcoming(self) -> asyncio.Event:
        return self._event


T = TypeVar("T")
log = logging.getLogger("feddbp.server")


class BackgroundTasks:
    """Everything that was begun and has not ended."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """For work whose end nobody waits for."""
        self.begin(work)

    async def run_shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Does what a call asks for, and goes on when the caller is gone: what is durable has its consequences."""
        return await asyncio.shield(self.begin(work))

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._over)
        return task

    async def finish(self) -> None:
        """Returns once nothing is under way."""
        while self._under_way:
            await asyncio.wait(list(self._under_way))

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and task.exception() is not None:  # raised where it is awaited, if anyone is left
            log.debug("work that was begun has failed", exc_info=task.exception())
