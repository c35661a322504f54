"""Exponential backoff with jitter, so that a thousand clients do not reconnect at once."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

_DOUBLINGS: Final = 32
"""Beyond any `longest`; the power of an unbounded number would overflow."""


@dataclass(kw_only=True)
class Backoff:
    """Delays between attempts, until `patience` has passed without an answer from the server."""

    patience: timedelta
    first: timedelta = timedelta(milliseconds=200)
    longest: timedelta = timedelta(seconds=10)
    clock: Callable[[], float]
    jitter: Callable[[], float] = field(default=random.random)
    _attempts: int = 0
    _since: float | None = None

    def answered(self) -> None:
        """Restarts the patience. Delays keep growing, in case the next call fails."""
        self._since = None

    def succeeded(self) -> None:
        """Restarts patience and delays."""
        self.answered()
        self._attempts = 0

    def next_delay(self, *, asked: timedelta | None = None) -> float | None:
        """Seconds until the next attempt, or None when patience has run out.

        `asked` is when the server wants it: a time that it gives to this client alone, so there is little jitter.
        """
        now = self.clock()
        if self._since is None:
            self._since = now
        left = self.patience.total_seconds() - (now - self._since)
        if left <= 0:
            return None
        if asked is not None:
            soonest = max(asked.total_seconds(), self.first.total_seconds() / 2)  # never in a busy loop
            return min(soonest * (1.0 + 0.1 * self.jitter()), left)
        ceiling = min(self.first.total_seconds() * 2.0 ** min(self._attempts, _DOUBLINGS), self.longest.total_seconds())
        self._attempts += 1
        return min(ceiling * (0.5 + 0.5 * self.jitter()), left)
