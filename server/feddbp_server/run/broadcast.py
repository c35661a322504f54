"""Wake-ups for tasks that wait for the next change of something."""

from __future__ import annotations

import asyncio


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
