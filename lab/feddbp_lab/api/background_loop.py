"""An event loop in a thread of its own, so that blocking calls work in scripts and in notebooks alike."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any, Final, TypeVar

T = TypeVar("T")
_END: Final = object()


class BackgroundLoop:
    """Runs coroutines from code that is not async; a notebook's own loop is already running and cannot."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="feddbp-api", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Blocks until the coroutine ends. An interrupt, such as Ctrl-C, cancels it and waits for its clean-up."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                self._cancel_all()
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """The items of an async generator, which is closed when the iteration ends early."""
        try:
            while (item := self.call(_next_or_end(items))) is not _END:
                yield item  # type: ignore[misc]  # _END was ruled out
        finally:
            self.call(items.aclose())

    def close(self) -> None:
        """Cancels what is still running, and ends the thread."""
        if self._loop.is_closed():
            return
        self._cancel_all()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _cancel_all(self) -> None:
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()


async def _next_or_end(items: AsyncGenerator[T, None]) -> T | object:
    return await anext(items, _END)


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
