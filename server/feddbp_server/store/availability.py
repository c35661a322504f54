"""The store as the run uses it: notices when nothing can be kept any more, and when that is over.

A disk that is full or broken is nobody's call to answer for: whoever calls meanwhile is told to try again, what the run
does of itself waits, and nothing that was accepted is lost by it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol, TypeVar

from feddbp_server.store.interface import Store, StoreError
from feddbp_server.store.writer import StoreWriter

T = TypeVar("T")


class Jobs(Protocol):
    """Whatever does work in the store's thread."""

    async def run(self, work: Callable[[Store], T]) -> T:
        """Does `work`; returns once it is durable."""


class MonitoredStore:
    """A store's thread whose failures to read or write are told apart from everything else, as `StoreError`."""

    def __init__(
        self, thread: StoreWriter, *, changed: Callable[[], None], pause: timedelta = timedelta(seconds=2)
    ) -> None:
        self.trouble = ""
        """Why nothing can be kept at the moment; empty while all is well."""
        self._thread = thread
        self._changed = changed
        self._pause = pause
        self._mended = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    async def run(self, work: Callable[[Store], T]) -> T:
        try:
            return await self._thread.run(work)
        except sqlite3.Error as error:
            raise self._noted(error) from error

    async def tidy(self, work: Callable[[Store], None]) -> None:
        try:
            await self._thread.tidy(work)
        except sqlite3.Error as error:
            raise self._noted(error) from error

    def check(self) -> None:
        """Spares whoever has much to send: while there is trouble, nothing of it could be kept."""
        if self.trouble:
            raise StoreError(self.trouble)

    async def wait_until_writable(self) -> None:
        """Returns once the store can be written, or nobody looks after it any more."""
        await self._mended.wait()

    async def give_up(self) -> None:
        """Ends the watch: whoever waits for a better day is let go."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None
        self._mended.set()

    def _noted(self, error: sqlite3.Error) -> Exception:
        """What the failure means to the caller; the first of its kind begins the watch for better days."""
        if not _is_trouble(error):
            return error
        if not self.trouble:
            self.trouble = f"the state directory cannot be used: {error}"
            self._mended.clear()
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
            self._mended.set()
            self._changed()


def _is_trouble(error: sqlite3.Error) -> bool:
    """A full disk, a broken one, a damaged file; not a statement that is wrong or a constraint that does not hold."""
    return isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError
