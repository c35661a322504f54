"""Wakes everyone who waits, without queues: a listener looks at the state itself, so it cannot fall behind."""

from __future__ import annotations

import asyncio


class Broadcast:
    """Take `upcoming()` before looking at the state and wait for it after: no change in between is missed."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def publish(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    def upcoming(self) -> asyncio.Event:
        return self._event
