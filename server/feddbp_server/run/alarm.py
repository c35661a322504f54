"""One moment in the future at which something has to be done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Alarm:
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
