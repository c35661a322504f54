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
        self, verb: str, total: int, noun: str = "images", *, clock: Callable[[], float] = time.monotonic
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
            due = now - self._logged >= _INTERVAL and self._done < self._total
            if due:
                self._logged = now
            done = self._done
        if due:
            left = (now - self._started) / done * (self._total - done)
            _log.info(
                "%s %s of %s %s, %s left", self._verb, f"{done:,}", f"{self._total:,}", self._noun, human_seconds(left)
            )
