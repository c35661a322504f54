"""The values of a run by round, from its events, under the names that trackers show."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.evaluation import CountedEvaluations, RoundAccuracy, SampleCounts
from feddbp_common.printable import printable

Round = tuple[int, dict[str, float]]
"""The number of completed rounds, and values by name."""


@dataclass(frozen=True)
class _Evaluation:
    client_id: int
    round: int
    metrics: pb.RoundMetrics

    @property
    def test_samples(self) -> int:
        return self.metrics.test_samples

    @property
    def has_trained(self) -> bool:
        return len(self.metrics.losses) > 0

    @property
    def counts(self) -> SampleCounts:
        rule = self.metrics.inference
        correct = (accuracy.correct for accuracy in self.metrics.accuracies if accuracy.rule == rule)
        return SampleCounts(correct=next(correct, 0), samples=self.test_samples)


class RoundValues:
    """Collects reports until their round is closed, so that values come once and in the order of rounds.

    A report of round r has the accuracy after r completed rounds and the losses of training in round r, which trackers
    show at r + 1 completed rounds.
    """

    def __init__(self) -> None:
        self.open_round = 0
        """The first round that is not closed yet."""
        self._reports: dict[int, dict[int, pb.RoundMetrics]] = {}
        self._counted = CountedEvaluations[_Evaluation]()

    def report(self, reported: pb.ClientReported) -> None:
        if reported.round >= self.open_round:
            self._reports.setdefault(reported.round, {})[reported.client_id] = reported.metrics

    def close(self, closed: pb.RoundClosed) -> list[Round]:
        """The values of a round that was aggregated; none if it is known already."""
        if closed.round < self.open_round:
            return []
        self.open_round = closed.round + 1
        reports = self._reports.pop(closed.round, {})
        after = {
            **_losses(reports),
            "round/seconds": closed.seconds,
            "round/aggregation_seconds": closed.aggregation_seconds,
            "round/uploads": float(sum(times.HasField("upload_ended") for times in closed.clients)),
            "round/missing": float(len(closed.missing)),
            "traffic/bytes_up": float(sum(metrics.bytes_up for metrics in reports.values())),
            "traffic/bytes_down": float(sum(metrics.bytes_down for metrics in reports.values())),
        }
        if closed.resident_bytes:
            after["server/resident_bytes"] = float(closed.resident_bytes)
        return [(closed.round, self._accuracies(closed.round, reports)), (closed.round + 1, after)]

    def rest(self) -> list[Round]:
        """Accuracies that no round followed: those of the final evaluation."""
        rest = [(number, self._accuracies(number, self._reports[number])) for number in sorted(self._reports)]
        self._reports.clear()
        return rest

    def _accuracies(self, number: int, reports: Mapping[int, pb.RoundMetrics]) -> dict[str, float]:
        """The accuracy of every client that evaluated, of the run, and over how many clients that is."""
        evaluated = {client: _Evaluation(client, number, metrics) for client, metrics in sorted(reports.items())}
        evaluated = {client: evaluation for client, evaluation in evaluated.items() if evaluation.test_samples}
        for evaluation in evaluated.values():
            self._counted.add(evaluation)
        counts = {client: evaluation.counts for client, evaluation in evaluated.items()}
        values = {f"accuracy/client_{client}": count.correct / count.samples for client, count in counts.items()}
        counted = self._counted.by_client or evaluated
        if counted:
            known = [evaluation.counts for evaluation in counted.values()]
            run = RoundAccuracy.over(number, known, evaluated=len(evaluated))
            values |= {
                "accuracy/all": run.weighted,
                "accuracy/mean_over_clients": run.unweighted,
                "accuracy/clients": float(run.clients),
            }
        return values


def _losses(reports: Mapping[int, pb.RoundMetrics]) -> dict[str, float]:
    """The mean over clients of every term of the loss."""
    found: dict[str, list[float]] = {}
    for metrics in reports.values():
        for term in metrics.losses:
            if math.isfinite(term.value):
                found.setdefault(f"loss/{printable(term.name, 40)}", []).append(term.value)
    return {name: sum(values) / len(values) for name, values in sorted(found.items())}
