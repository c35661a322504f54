"""Joins of many clients at once: a bounded number is in progress, and the others are refused with a time to retry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from feddbp.v1 import federation_pb2 as pb
from feddbp_server.run.admission.limits import Limits
from feddbp_server.run.admission.refusals import RefusedError

_FIRST_SECONDS: Final = 0.002
"""Between two joins, before there were any to measure."""
_WEIGHT: Final = 0.05
"""Of the newest join in the moving average."""


class JoinLimiter:
    """Owns how many joins are in progress, and the times at which refused clients retry.

    Each of them gets a time of its own, one join after the one before, so that they do not all return at once.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._in_progress = 0
        self._seconds = _FIRST_SECONDS
        """Between the ends of two joins while others are in progress, as a moving average."""
        self._last_end: float | None = None
        self._next_return = 0.0

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Held while a client joins; refuses it if there are too many."""
        if self._in_progress >= self._limits.joins_at_once:
            retry_after = self._time_to_return()
            raise RefusedError(
                pb.REFUSAL_REASON_BUSY,
                f"{self._in_progress} clients are joining already; retry in {retry_after.total_seconds():.1f}s",
                retry_after=retry_after,
            )
        if not self._in_progress:
            self._last_end = self._clock()
        self._in_progress += 1
        try:
            yield
        finally:
            self._in_progress -= 1
            self._measure()

    def _time_to_return(self) -> timedelta:
        now = self._clock()
        earliest = now + self._in_progress * self._seconds
        latest = now + self._limits.longest_join_retry.total_seconds()
        self._next_return = min(max(self._next_return + self._seconds, earliest), latest)
        return timedelta(seconds=self._next_return - now)

    def _measure(self) -> None:
        now = self._clock()
        if self._last_end is not None:
            self._seconds += _WEIGHT * (now - self._last_end - self._seconds)
        self._last_end = now
