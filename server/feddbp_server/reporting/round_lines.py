"""Rounds as people read them in the log: counted from 1, with who took part, how long it took and what is left.

Rounds are counted from 0 wherever programs read them: on the wire, in the database, in `metrics.jsonl`, `audit.jsonl`,
the JSON status and the Prometheus metrics.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal

from feddbp_common.evaluation import CurrentAccuracy, accuracy_over_clients, share_of_clients
from feddbp_common.humanize import client_names, human_seconds, round_name

_TIMED_ROUNDS: Final = 5
"""Rounds from whose median duration the time left is estimated; the first one of a client takes longer."""


@dataclass(frozen=True, kw_only=True)
class ClosedRound:
    """What the line of a round says; `accuracy` is after the rounds before it: clients evaluate, then train."""

    number: int
    uploaded: frozenset[int]
    accuracy: CurrentAccuracy | None


class RoundLines:
    """Names rounds, and measures them."""

    def __init__(
        self,
        *,
        rounds: int,
        clients: int,
        clock: Callable[[], float],
        finetune_rounds: int = 0,
        finetune_state: Literal["own", "last"] = "own",
    ) -> None:
        self._rounds = rounds
        self._clients = clients
        self._first_of_finetuning = rounds - finetune_rounds if finetune_rounds else None
        self._finetune_state = finetune_state
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

    def finetuning(self, number: int) -> str | None:
        """What to say when the first round of fine-tuning opens; None of any other."""
        if number != self._first_of_finetuning:
            return None
        first = number + 1
        which = f"rounds {first} to {self._rounds}" if first < self._rounds else f"round {first}"
        state = f", with the state after round {number}" if self._finetune_state == "last" else ""
        return f"{which}: fine-tuning, without exchange{state}"

    def resumed(self, selected: frozenset[int]) -> None:
        """A round that an earlier server opened."""
        self._selected = selected

    def missing(self, closed: ClosedRound) -> frozenset[int]:
        """Clients that were selected when the round opened and did not upload, those that have left among them."""
        return self._selected - closed.uploaded

    def closed(self, closed: ClosedRound) -> str:
        parts = [f"{self.name(closed.number)}: {self._participants(closed)}{self._duration()}"]
        if (found := closed.accuracy) is not None:
            over = accuracy_over_clients(found.accuracy, found.clients, self._clients, evaluated=found.evaluated)
            parts.append(f"accuracy after round {closed.number}: {over}")
        left = self._rounds - closed.number - 1
        if left and self._durations:
            parts.append(f"about {human_seconds(left * median(self._durations))} left")
        return "; ".join(parts)

    def _participants(self, closed: ClosedRound) -> str:
        missing = self.missing(closed)
        without = f", without {client_names(missing)}" if missing else ""
        return f"{share_of_clients(len(closed.uploaded), self._clients)} uploaded{without}"

    def _duration(self) -> str:
        if self._opened_at is None:
            return ""
        seconds = self._clock() - self._opened_at
        self._durations.append(seconds)
        self._opened_at = None
        return f", in {human_seconds(seconds)}"
