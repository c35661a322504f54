"""The summary of a run: accuracies by round and by client, traffic and time."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any

from feddbp_common.config.identity import canonical
from feddbp_common.config.run import RunConfig
from feddbp_common.evaluation import best_round
from feddbp_common.fault_injection import fault_point
from feddbp_common.humanize import client_names
from feddbp_server.reporting.metrics_log import MetricsLog, Report, reports_in
from feddbp_server.run.sessions import Session
from feddbp_server.run.state_machine import Phase
from feddbp_server.store import Jobs

log = logging.getLogger("feddbp.server")


@dataclass(frozen=True, kw_only=True)
class RoundAccuracy:
    """Accuracy over clients after a number of completed rounds."""

    round: int
    weighted: float
    """All correct over all test samples."""
    unweighted: float
    """Mean of the clients' own accuracies."""
    deviation: float
    """Standard deviation of the clients' own accuracies."""
    clients: int
    validation: float | None = None
    """All correct over all validation samples; None in a run that holds out none."""

    def as_dict(self) -> dict[str, Any]:
        held_out = {} if self.validation is None else {"validation": self.validation}
        return {
            "round": self.round,
            "weighted": self.weighted,
            "unweighted": self.unweighted,
            "std_over_clients": self.deviation,
            "clients": self.clients,
            **held_out,
        }


@dataclass
class _RoundTally:
    correct: int = 0
    samples: int = 0
    validation_correct: int = 0
    validation_samples: int = 0
    accuracies: list[float] = field(default_factory=list)

    def add(self, report: Report) -> None:
        self.correct += report.correct
        self.samples += report.metrics.test_samples
        self.validation_correct += report.validation_correct
        self.validation_samples += report.metrics.validation_samples
        self.accuracies.append(report.accuracy)

    def over_clients(self, number: int) -> RoundAccuracy:
        return RoundAccuracy(
            round=number,
            weighted=self.correct / self.samples if self.samples else 0.0,
            unweighted=fmean(self.accuracies),
            deviation=pstdev(self.accuracies),
            clients=len(self.accuracies),
            validation=self.validation_correct / self.validation_samples if self.validation_samples else None,
        )


class Tally:
    """Sums over all reports of a run. Their order does not matter: mean and deviation are computed exactly."""

    def __init__(self) -> None:
        self.bytes_up = 0
        self.bytes_down = 0
        self._rounds: dict[int, _RoundTally] = defaultdict(_RoundTally)
        self._newest: dict[int, tuple[int, float]] = {}
        """By client: the round of its newest report, and its accuracy in it."""

    def add(self, report: Report) -> None:
        self.bytes_up += report.metrics.bytes_up
        self.bytes_down += report.metrics.bytes_down
        self._rounds[report.round].add(report)
        newest = report.round, report.accuracy
        self._newest[report.client_id] = max(newest, self._newest.get(report.client_id, newest))

    def curve(self) -> list[RoundAccuracy]:
        return [self._rounds[number].over_clients(number) for number in sorted(self._rounds)]

    def newest_accuracy(self, client_id: int) -> float | None:
        return self._newest[client_id][1] if client_id in self._newest else None


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """What a summary needs of a run besides its reports."""

    config: RunConfig
    run_id: str
    sessions: list[Session]
    phase: Phase
    reason: str
    completed_rounds: int
    seconds: float
    prototypes_sha256: str
    began_with: int
    """Clients in the first round; 0 if there was none."""


async def write_summary(outcome: RunOutcome, store: Jobs, metrics_log: MetricsLog) -> None:
    """Writes `summary.json`, and the lines `metrics.jsonl` is missing."""
    summary = await store.run(lambda store: summarise(outcome, reports_in(store)))
    await store.run(lambda store: metrics_log.complete(reports_in(store)))
    metrics_log.write_summary(summary)
    last = summary["accuracy"]["last"]
    accuracy = f"accuracy {100 * last['weighted']:.1f} % after {last['round']} rounds; " if last else ""
    log.info("%sthe summary is %s", accuracy, metrics_log.summary_path)
    participants = summary["participants"]
    if participants["trained_alone"]:
        log.warning("one client trained alone: no other of the %d clients ever joined", outcome.config.clients)
    elif participants["never_joined"]:
        log.warning("%s never joined", client_names(participants["never_joined"]))
    fault_point("server.end.summarised")


def summarise(outcome: RunOutcome, reports: Iterable[Report]) -> dict[str, Any]:
    """Reads the reports once and keeps none: a long run has more of them than fit in memory."""
    config, tally = outcome.config, Tally()
    for report in reports:
        tally.add(report)
    curve = tally.curve()
    return {
        "method": config.method,
        "dataset": config.data.dataset,
        "clients": config.clients,
        "rounds": config.rounds,
        "seed": config.seed,
        "outcome": outcome.phase.value,
        "reason": outcome.reason,
        "completed_rounds": outcome.completed_rounds,
        "accuracy": {
            "best": _as_dict(best_round(curve, lambda point: point.weighted)),
            "last": _as_dict(curve[-1] if curve else None),
            # chosen on held-out samples, so that its accuracy on the test samples is not the luck of a maximum
            **({"chosen": _as_dict(best_round(curve, _validation))} if config.training.validation else {}),
        },
        "bytes_up": tally.bytes_up,
        "bytes_down": tally.bytes_down,
        "seconds": outcome.seconds,
        "prototypes_sha256": outcome.prototypes_sha256,
        "run_id": outcome.run_id,
        "participants": _participants(outcome),
        "per_client": [_client_entry(session, tally) for session in outcome.sessions],
        "curve": [point.as_dict() for point in curve],
        "config": canonical(config),
    }


def _participants(outcome: RunOutcome) -> dict[str, Any]:
    joined = {session.client_id for session in outcome.sessions}
    return {
        "began_with": outcome.began_with,
        "joined": len(joined),
        "never_joined": sorted(set(range(outcome.config.clients)) - joined),
        "trained_alone": outcome.config.clients > 1 and len(joined) == 1,
    }


def _validation(point: RoundAccuracy) -> float:
    return point.validation or 0.0


def _as_dict(point: RoundAccuracy | None) -> dict[str, Any] | None:
    return None if point is None else point.as_dict()


def _client_entry(session: Session, tally: Tally) -> dict[str, Any]:
    return {
        "client": session.client_id,
        "architecture": session.capabilities.architecture,
        "parameters": session.capabilities.parameters,
        "classes_held": sum(count > 0 for count in session.data.label_counts),
        "train_samples": sum(session.data.label_counts),
        "test_samples": session.data.test_samples,
        "accuracy": tally.newest_accuracy(session.client_id),
    }
