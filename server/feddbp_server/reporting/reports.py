"""What one client reported on one round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from feddbp.v1 import federation_pb2 as pb
from feddbp_server.store import ReportRecord


@dataclass(frozen=True, kw_only=True)
class Report:
    """The results of one client in one round."""

    client_id: int
    round: int
    metrics: pb.RoundMetrics

    @classmethod
    def from_record(cls, record: ReportRecord) -> Report:
        metrics = pb.RoundMetrics.FromString(record.metrics)
        return cls(client_id=record.client_id, round=record.round, metrics=metrics)

    @property
    def correct(self) -> int:
        """Test samples it got right under the rule that counts."""
        return next((entry.correct for entry in self.metrics.accuracies if entry.rule == self.metrics.inference), 0)

    @property
    def accuracy(self) -> float:
        return self.correct / self.metrics.test_samples if self.metrics.test_samples else 0.0

    def as_line(self) -> dict[str, Any]:
        metrics, samples = self.metrics, max(self.metrics.test_samples, 1)
        return {
            "client": self.client_id,
            "round": self.round,
            "accuracy": self.accuracy,
            "inference": metrics.inference,
            "accuracies": {entry.rule: entry.correct / samples for entry in metrics.accuracies},
            "test_samples": metrics.test_samples,
            "losses": {term.name: term.value for term in metrics.losses},
            "seconds": {
                "evaluate": metrics.seconds.evaluate,
                "train": metrics.seconds.train,
                "collect": metrics.seconds.collect,
            },
            "bytes_up": metrics.bytes_up,
            "bytes_down": metrics.bytes_down,
        }
