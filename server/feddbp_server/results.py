"""What a run leaves behind for people: `metrics.jsonl` as reports come in, `summary.json` at the end."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Final

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config import RunConfig
from feddbp_common.files import append_line, replace_text
from feddbp_server.rounds import Phase
from feddbp_server.sessions import Client
from feddbp_server.store import ReportRecord

log = logging.getLogger("feddbp.server")

METRICS_NAME: Final = "metrics.jsonl"
SUMMARY_NAME: Final = "summary.json"


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
            # JSON has no word for what is not finite
            "losses": {term.name: term.value if isfinite(term.value) else None for term in metrics.losses},
            "seconds": {
                "evaluate": metrics.seconds.evaluate,
                "train": metrics.seconds.train,
                "collect": metrics.seconds.collect,
            },
            "bytes_up": metrics.bytes_up,
            "bytes_down": metrics.bytes_down,
        }


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

    def as_dict(self) -> dict[str, Any]:
        return {
            "round": self.round,
            "weighted": self.weighted,
            "unweighted": self.unweighted,
            "std_over_clients": self.deviation,
            "clients": self.clients,
        }


def accuracy_by_round(reports: Iterable[Report]) -> list[RoundAccuracy]:
    by_round: dict[int, list[Report]] = defaultdict(list)
    for report in reports:
        by_round[report.round].append(report)
    return [_over_clients(number, by_round[number]) for number in sorted(by_round)]


def _over_clients(number: int, reports: list[Report]) -> RoundAccuracy:
    accuracies = [report.accuracy for report in sorted(reports, key=lambda report: report.client_id)]
    samples = sum(report.metrics.test_samples for report in reports)
    return RoundAccuracy(
        round=number,
        weighted=sum(report.correct for report in reports) / samples if samples else 0.0,
        unweighted=fmean(accuracies),
        deviation=pstdev(accuracies),
        clients=len(reports),
    )


def summarise(
    *,
    config: RunConfig,
    run_id: str,
    reports: list[Report],
    clients: list[Client],
    outcome: Phase,
    reason: str,
    completed_rounds: int,
    seconds: float,
    prototypes_sha256: str,
) -> dict[str, Any]:
    curve = accuracy_by_round(reports)
    newest = {report.client_id: report for report in sorted(reports, key=lambda report: report.round)}
    best = max(curve, key=lambda point: point.weighted, default=None)
    return {
        "method": config.method,
        "dataset": config.data.dataset,
        "clients": config.clients,
        "rounds": config.rounds,
        "seed": config.seed,
        "outcome": outcome.value,
        "reason": reason,
        "completed_rounds": completed_rounds,
        "accuracy": {
            "best": best.as_dict() if best else None,
            "last": curve[-1].as_dict() if curve else None,
        },
        "bytes_up": sum(report.metrics.bytes_up for report in reports),
        "bytes_down": sum(report.metrics.bytes_down for report in reports),
        "seconds": seconds,
        "prototypes_sha256": prototypes_sha256,
        "run_id": run_id,
        "per_client": [_client_entry(client, newest.get(client.client_id)) for client in clients],
        "curve": [point.as_dict() for point in curve],
        "config": config.model_dump(mode="json"),
    }


def _client_entry(client: Client, newest: Report | None) -> dict[str, Any]:
    return {
        "client": client.client_id,
        "architecture": client.capabilities.architecture,
        "parameters": client.capabilities.parameters,
        "classes_held": sum(count > 0 for count in client.data.label_counts),
        "train_samples": sum(client.data.label_counts),
        "test_samples": client.data.test_samples,
        "accuracy": newest.accuracy if newest is not None else None,
    }


@dataclass
class Traffic:
    """Bytes a client has sent and received, as it reported them."""

    up: int = 0
    down: int = 0

    def add(self, metrics: pb.RoundMetrics) -> None:
        self.up += metrics.bytes_up
        self.down += metrics.bytes_down


@dataclass
class _Tally:
    """A round's reports so far, in whole numbers: they add up the same in any order."""

    reports: int = 0
    correct: int = 0
    samples: int = 0


class Results:
    """The run's reports as far as the running server needs them, and the files made of them.

    The store is the truth: the files are rewritten from it on every start, and here only tallies and each client's
    newest report stay in memory.
    """

    def __init__(self, directory: Path) -> None:
        self._metrics = directory / METRICS_NAME
        self._summary = directory / SUMMARY_NAME
        self._newest: dict[int, Report] = {}
        self._tallies: dict[int, _Tally] = defaultdict(_Tally)
        self._traffic: dict[int, Traffic] = defaultdict(Traffic)
        self.traffic = Traffic()
        """Of all clients together."""
        self._behind = False
        """A line could not be written: the file has to be made anew."""

    def restore(self, reports: Iterable[Report]) -> None:
        kept = list(reports)
        for report in kept:
            self._count(report)
        self._write_metrics(kept)

    def add(self, report: Report) -> None:
        """Counts a report and adds its line. A line that cannot be written is not lost: the store has the report."""
        self._count(report)
        try:
            with self._metrics.open("ab", buffering=0) as file:
                append_line(file, _line(report))
        except OSError as error:
            if not self._behind:
                log.error("%s cannot be written: %s; it will be completed later", METRICS_NAME, error.strerror)
            self._behind = True

    def complete(self, reports: Iterable[Report]) -> None:
        """Writes what could not be written when it came in."""
        if self._behind:
            self._write_metrics(reports)
            self._behind = False

    def newest_of(self, client_id: int) -> Report | None:
        return self._newest.get(client_id)

    def traffic_of(self, client_id: int) -> Traffic:
        return self._traffic.get(client_id) or Traffic()

    def newest_accuracy(self, expected_reports: int) -> float | None:
        """Sample-weighted accuracy of the newest round with that many reports, or with any."""
        rounds = sorted(self._tallies, reverse=True)
        complete = [number for number in rounds if self._tallies[number].reports >= expected_reports]
        for number in complete or rounds:
            tally = self._tallies[number]
            return tally.correct / tally.samples if tally.samples else 0.0
        return None

    @property
    def summary_path(self) -> Path:
        return self._summary

    @property
    def has_summary(self) -> bool:
        return self._summary.exists()

    def write_summary(self, summary: dict[str, Any]) -> None:
        replace_text(self._summary, json.dumps(summary, indent=2) + "\n")

    def _write_metrics(self, reports: Iterable[Report]) -> None:
        replace_text(self._metrics, "".join(f"{_line(report)}\n" for report in reports))

    def _count(self, report: Report) -> None:
        known = self._newest.get(report.client_id)
        if known is None or known.round <= report.round:
            self._newest[report.client_id] = report
        tally = self._tallies[report.round]
        tally.reports += 1
        tally.correct += report.correct
        tally.samples += report.metrics.test_samples
        self.traffic.add(report.metrics)
        self._traffic[report.client_id].add(report.metrics)


def _line(report: Report) -> str:
    return json.dumps(report.as_line())
