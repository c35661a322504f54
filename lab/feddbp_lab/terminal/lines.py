"""Progress of a run where the output is no terminal: a line at its start, and one per round."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TextIO

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.run import RunConfig
from feddbp_common.evaluation import CountedEvaluations, accuracy_over_clients
from feddbp_common.humanize import human_bytes, human_seconds, quantity
from feddbp_lab.results.run_results import EvaluationLine, MetricsTail, accuracy_after


@dataclass(kw_only=True)
class PlainDisplay:
    """Prints a line per completed round, flushed, so that a log can be followed.

    The numbers are from the metrics file: a status has only each client's newest results, and may skip a round.
    """

    output: TextIO
    title: str
    run: RunConfig
    metrics: MetricsTail
    clock: Callable[[], float] = time.monotonic
    _reports: dict[int, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    _completed_at: list[float] = field(default_factory=list)
    """By the number of completed rounds, when it was first seen."""
    _printed: int = 0
    """Rounds a line has been printed for."""
    _evaluations: CountedEvaluations[EvaluationLine] = field(default_factory=CountedEvaluations)
    """Of these rounds."""

    def __enter__(self) -> Self:
        self._print(self.title)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to clean up."""

    def show(self, status: pb.RunStatus) -> None:
        if status.phase == pb.PHASE_WAITING:
            return
        if not self._completed_at:
            count = len(status.clients)
            joined = f"{quantity(count, 'client')} {'has' if count == 1 else 'have'} joined"
            self._print(f"{joined}, round 1 of {status.rounds} is open")
        while len(self._completed_at) <= status.round:
            self._completed_at.append(self.clock())
        for report in self.metrics.new_lines():
            self._reports[report["round"]].append(report)
        while self._printed < status.round and self._is_evaluated(self._printed + 1):
            self._printed += 1
            self._print(self._line(self._printed, status.rounds))

    def _is_evaluated(self, number: int) -> bool:
        return len(self._reports[number]) >= self.run.clients_in(number)

    def _line(self, number: int, rounds: int) -> str:
        # A client evaluates before it trains: the traffic during the k-th round is in the reports of round k-1, the
        # accuracy after it in those of round k.
        during, after = self._reports.pop(number - 1), self._reports[number]
        up, down = (human_bytes(sum(report[key] for report in during)) for key in ("bytes_up", "bytes_down"))
        seconds = self._completed_at[number] - self._completed_at[number - 1]
        for report in (*(during if number == 1 else ()), *after):
            self._evaluations.add(EvaluationLine(report))
        over, widest = self._accuracy(number), accuracy_over_clients(1.0, self.run.clients, self.run.clients)
        return (
            f"round {number:>{len(str(rounds))}}/{rounds}  accuracy {over:>{len(widest)}}"
            f"  up {up:>8}  down {down:>8}  {human_seconds(seconds):>7}"
        )

    def _accuracy(self, number: int) -> str:
        found = accuracy_after(self._evaluations, number)
        if found is None:
            return accuracy_over_clients(None, 0, self.run.clients)
        return accuracy_over_clients(found.accuracy, found.clients, self.run.clients, evaluated=found.evaluated)

    def _print(self, text: str) -> None:
        print(text, file=self.output, flush=True)


class SilentDisplay:
    """Prints nothing, for output that a program reads."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to clean up."""

    def show(self, status: pb.RunStatus) -> None:
        """Nothing to print."""
