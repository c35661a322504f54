"""Progress of reading data, as log lines: none for a quick read, and never a long silence."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from feddbp_common.humanize import human_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

_INTERVAL: Final = 5.0
"""Seconds before the first line, and between two."""


class Progress:
    """Counts what is done and logs it every few seconds, with an estimate of the time left; safe between threads."""

    def __init__(
        self, verb: str, total: int | None = None, noun: str = "images", *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._verb = verb
        self._total = total
        self._noun = noun
        self._clock = clock
        self._lock = threading.Lock()
        self._done = 0
        self._started = self._logged = clock()

    def advance(self, count: int = 1) -> None:
        now = self._clock()
        with self._lock:
            self._done += count
            if now - self._logged < _INTERVAL or self._done == self._total:
                return
            self._logged, line = now, self._line(now)
        _log.info(line)

    def _line(self, now: float) -> str:
        if self._total is None:
            return f"{self._verb} {self._done:,} {self._noun} so far"
        left = (now - self._started) / self._done * (self._total - self._done)
        return f"{self._verb} {self._done:,} of {self._total:,} {self._noun}, {human_seconds(left)} left"
