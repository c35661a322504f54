"""Rounds as people read them in the log: counted from 1, with who took part, how long it took and what is left.

Rounds are counted from 0 wherever programs read them: on the wire, in the database, in `metrics.jsonl`, `audit.jsonl`,
the JSON status and the Prometheus metrics.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Final

from feddbp_common.humanize import client_names, human_seconds, percent, round_name

_TIMED_ROUNDS: Final = 5
"""Rounds from whose median duration the time left is estimated; the first one of a client takes longer."""


@dataclass(frozen=True, kw_only=True)
class ClosedRound:
    """What the line of a round says; `accuracy` is over the clients that evaluated at its beginning."""

    number: int
    uploaded: frozenset[int]
    accuracy: float | None
    evaluated: int


class RoundLines:
    """Names rounds, and measures them."""

    def __init__(self, *, rounds: int, clients: int, clock: Callable[[], float]) -> None:
        self._rounds = rounds
        self._clients = clients
        self._clock = clock
        self._selected: frozenset[int] = frozenset()
        self._opened_at: float | None = None
        """None for a round that an earlier server opened."""
        self._durations: deque[float] = deque(maxlen=_TIMED_ROUNDS)

    def name(self, number: int) -> str:
        return round_name(number, self._rounds)

    def opened(self, number: int, selected: frozenset[int]) -> str:
        self._selected, self._opened_at = selected, self._clock()
        return f"{self.name(number)} is open for {len(selected)} of {self._clients} clients"

    def resumed(self, selected: frozenset[int]) -> None:
        """A round that an earlier server opened."""
        self._selected = selected

    def missing(self, closed: ClosedRound) -> frozenset[int]:
        """Clients that were selected when the round opened and did not upload, those that have left among them."""
        return self._selected - closed.uploaded

    def closed(self, closed: ClosedRound) -> str:
        parts = [f"{self.name(closed.number)}: {self._participants(closed)}{self._duration()}"]
        if closed.number > 0 and closed.accuracy is not None:
            after = f"after round {closed.number}"
            parts.append(f"accuracy {percent(closed.accuracy)} {after}, over {self._share(closed.evaluated)}")
        left = self._rounds - closed.number - 1
        if left and self._durations:
            parts.append(f"about {human_seconds(left * median(self._durations))} left")
        return "; ".join(parts)

    def _participants(self, closed: ClosedRound) -> str:
        missing = self.missing(closed)
        without = f", without {client_names(missing)}" if missing else ""
        return f"{self._share(len(closed.uploaded))} uploaded{without}"

    def _share(self, count: int) -> str:
        return f"{count} of {self._clients} clients"

    def _duration(self) -> str:
        if self._opened_at is None:
            return ""
        seconds = self._clock() - self._opened_at
        self._durations.append(seconds)
        self._opened_at = None
        return f", in {human_seconds(seconds)}"
