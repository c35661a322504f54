"""The summary of a run: accuracies by round and by client, traffic and time."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from feddbp_common.config.identity import canonical
from feddbp_common.config.privacy_text import privacy_sentences
from feddbp_common.config.run import RunConfig
from feddbp_common.evaluation import RoundAccuracy, accuracy_over_clients, best_round, counted_by_round
from feddbp_common.fault_injection import fault_point
from feddbp_common.humanize import client_names, quantity
from feddbp_server.reporting.metrics_log import MetricsLog, Report, reports_in
from feddbp_server.run.sessions import Session
from feddbp_server.run.state_machine.state import Phase
from feddbp_server.store import Jobs, StoreError

log = logging.getLogger("feddbp.server")


@dataclass
class _ClientTotals:
    """What all reports of a client say together."""

    accuracy: float | None = None
    """The one that counts in the run's; None if none does."""
    accuracy_round: int | None = None
    trained_rounds: int = 0
    first_round: int | None = None
    last_round: int | None = None

    def add(self, report: Report) -> None:
        if report.has_trained:
            self.trained_rounds += 1
            self.first_round = report.round if self.first_round is None else self.first_round
            self.last_round = report.round


class Tally:
    """Sums over all reports of a run, which are added in the order of rounds."""

    def __init__(self) -> None:
        self.bytes_up = 0
        self.bytes_down = 0
        self.curve: list[RoundAccuracy] = []
        self._clients: dict[int, _ClientTotals] = defaultdict(_ClientTotals)

    @classmethod
    def over(cls, reports: Iterable[Report]) -> Tally:
        """Reads the reports once and keeps none but each client's newest."""
        tally = cls()
        for number, counted in counted_by_round(map(tally._add, reports)):
            tally._close_round(number, counted.values())
        return tally

    def client(self, client_id: int) -> _ClientTotals:
        return self._clients[client_id]

    def _add(self, report: Report) -> Report:
        self.bytes_up += report.metrics.bytes_up
        self.bytes_down += report.metrics.bytes_down
        self._clients[report.client_id].add(report)
        return report

    def _close_round(self, number: int, counted: Collection[Report]) -> None:
        evaluated = [report for report in counted if report.round == number]
        self.curve.append(RoundAccuracy.over(number, [report.counts for report in counted], evaluated=len(evaluated)))
        for report in evaluated:
            client = self._clients[report.client_id]
            client.accuracy, client.accuracy_round = report.accuracy, number


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
    """Writes `summary.json`, and the lines `metrics.jsonl` is missing; a failure is only logged."""
    try:
        summary = await store.run(lambda store: summarise(outcome, reports_in(store)))
        await store.run(lambda store: metrics_log.complete(reports_in(store)))
        metrics_log.write_summary(summary)
    except (OSError, StoreError) as error:
        log.error("the summary could not be written: %s; the next start of the server writes it", error)
        return
    log.info("%sthe summary is %s", _result_text(summary), metrics_log.summary_path)
    participants = summary["participants"]
    if participants["trained_alone"]:
        log.warning("one client trained alone: no other of the %d clients ever joined", outcome.config.clients)
    elif participants["never_joined"]:
        log.warning("%s never joined", client_names(participants["never_joined"]))
    fault_point("server.end.summarised")


def summarise(outcome: RunOutcome, reports: Iterable[Report]) -> dict[str, Any]:
    """Reads the reports once: a long run has more of them than fit in memory."""
    config, tally = outcome.config, Tally.over(reports)
    curve = tally.curve
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
        **({"privacy": promises} if (promises := privacy_sentences(config)) else {}),
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


def _result_text(summary: dict[str, Any]) -> str:
    last = summary["accuracy"]["last"]
    if not last or not last["round"]:
        return ""
    point = RoundAccuracy.from_dict(last)
    text = accuracy_over_clients(point.weighted, point.clients, summary["clients"], evaluated=point.evaluated)
    return f"accuracy {text}, after {quantity(point.round, 'round')}; "


def _validation(point: RoundAccuracy) -> float:
    return point.validation or 0.0


def _as_dict(point: RoundAccuracy | None) -> dict[str, Any] | None:
    return None if point is None else point.as_dict()


def _client_entry(session: Session, tally: Tally) -> dict[str, Any]:
    totals = tally.client(session.client_id)
    return {
        "client": session.client_id,
        "name": session.capabilities.name,
        "architecture": session.capabilities.architecture,
        "parameters": session.capabilities.parameters,
        "classes_held": sum(count > 0 for count in session.data.label_counts),
        "train_samples": sum(session.data.label_counts),
        "test_samples": session.data.test_samples,
        "accuracy": totals.accuracy,
        "accuracy_round": totals.accuracy_round,
        "trained_rounds": totals.trained_rounds,
        "first_round": totals.first_round,
        "last_round": totals.last_round,
    }
