"""What a stream of statuses tells over time: how far the run is, how long it will take, and how clients get better."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Final

from feddbp.v1 import federation_pb2 as pb

TREND_LENGTH: Final = 32
"""Accuracies of a client that are remembered."""
_ACTIVE_PHASES: Final = (pb.PHASE_COLLECTING, pb.PHASE_AGGREGATING, pb.PHASE_EVALUATING, pb.PHASE_FINISHED)
_ENOUGH_TO_GO_BY: Final = 0.2
"""Rounds that must be done before their pace is worth anything."""


class History:
    """Collects statuses, each with the time it came."""

    def __init__(self) -> None:
        self._began: tuple[float, float] | None = None
        """When the run was first seen training, and how many rounds were done then."""
        self._newest: dict[int, int] = {}
        self._trends: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=TREND_LENGTH))

    def update(self, status: pb.RunStatus, now: float) -> None:
        if self._began is None and status.phase in _ACTIVE_PHASES:
            self._began = now, rounds_done(status)
        for client in status.clients:
            accuracy = trained_accuracy(client)
            if accuracy is not None and client.metrics_round > self._newest.get(client.client_id, 0):
                self._newest[client.client_id] = client.metrics_round
                self._trends[client.client_id].append(accuracy)

    def trend(self, client_id: int) -> list[float]:
        """A client's accuracies, oldest first, from its first training on."""
        return list(self._trends.get(client_id, ()))

    def seconds(self, now: float) -> float:
        """Since the first round opened."""
        return now - self._began[0] if self._began else 0.0

    def seconds_left(self, status: pb.RunStatus, now: float) -> float | None:
        """An estimate from the pace so far; None while there is too little to go by."""
        if self._began is None or status.phase not in (pb.PHASE_COLLECTING, pb.PHASE_AGGREGATING):
            return None
        done = rounds_done(status)
        seen = done - self._began[1]
        return self.seconds(now) / seen * (status.rounds - done) if seen >= _ENOUGH_TO_GO_BY else None


def rounds_done(status: pb.RunStatus) -> float:
    """Completed rounds, and the part of the open one that is done."""
    if status.phase == pb.PHASE_AGGREGATING:
        return status.round + 1.0
    if status.phase not in (pb.PHASE_COLLECTING, pb.PHASE_PAUSED):
        return float(status.round)
    parts = [part for part in map(_part_done, status.clients) if part is not None]
    return status.round + (sum(parts) / len(parts) if parts else 0.0)


def _part_done(client: pb.ClientStatus) -> float | None:
    if client.activity == pb.CLIENT_ACTIVITY_UPLOADED:
        return 1.0
    if client.activity != pb.CLIENT_ACTIVITY_TRAINING:
        return None
    return client.progress.epochs_done / client.progress.epochs if client.progress.epochs else 0.0


def trained_accuracy(client: pb.ClientStatus) -> float | None:
    """A client's newest accuracy; none before its first training, when a rule may have nothing to go by."""
    metrics = client.metrics
    if client.metrics_round == 0 or not metrics.test_samples:
        return None
    correct = next((entry.correct for entry in metrics.accuracies if entry.rule == metrics.inference), 0)
    return correct / metrics.test_samples
