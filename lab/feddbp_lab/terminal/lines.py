"""A run's progress where there is no terminal: a line when it begins, and one per round."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TextIO

from feddbp.v1 import federation_pb2 as pb
from feddbp_lab.results.run_results import MetricsTail
from feddbp_lab.terminal.format import human_bytes, human_seconds, percent


@dataclass(kw_only=True)
class PlainDisplay:
    """One line per completed round, written at once so that a log can be followed.

    The numbers are those of the metrics file: a status holds a client's newest results only, and may skip some.
    """

    output: TextIO
    title: str
    clients: int
    metrics: MetricsTail
    clock: Callable[[], float] = time.monotonic
    _reports: dict[int, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    _completed_at: list[float] = field(default_factory=list)
    """When so many rounds were first seen completed."""
    _told: int = 0

    def __enter__(self) -> Self:
        self._print(self.title)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to put away."""

    def show(self, status: pb.RunStatus) -> None:
        if status.phase == pb.PHASE_WAITING:
            return
        if not self._completed_at:
            self._print(f"{len(status.clients)} clients have joined, round 1 of {status.rounds} is open")
        while len(self._completed_at) <= status.round:
            self._completed_at.append(self.clock())
        for report in self.metrics.new_lines():
            self._reports[report["round"]].append(report)
        while self._told < status.round and len(self._reports[self._told + 1]) >= self.clients:
            self._told += 1
            self._print(self._line(self._told, status.rounds))

    def _line(self, number: int, rounds: int) -> str:
        # A client evaluates before it trains: the accuracy after the k-th round, and the traffic during it, are in
        # reports that are one apart.
        during, after = self._reports.pop(number - 1), self._reports[number]
        samples = sum(report["test_samples"] for report in after)
        right = sum(report["accuracy"] * report["test_samples"] for report in after)
        up, down = (human_bytes(sum(report[way] for report in during)) for way in ("bytes_up", "bytes_down"))
        seconds = self._completed_at[number] - self._completed_at[number - 1]
        return (
            f"round {number:>{len(str(rounds))}}/{rounds}  accuracy {percent(right / samples if samples else None):>7}"
            f"  up {up:>8}  down {down:>8}  {human_seconds(seconds):>7}"
        )

    def _print(self, text: str) -> None:
        print(text, file=self.output, flush=True)


class SilentDisplay:
    """Shows nothing; for programs, and for many federations at once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to put away."""

    def show(self, status: pb.RunStatus) -> None:
        """Nothing to show."""
