"""The results of a run: `metrics.jsonl` as reports arrive, `summary.json` at the end."""

from __future__ import annotations

import io
import json
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.artifacts import METRICS_NAME, SUMMARY_NAME
from feddbp_common.atomic_files import append_line, replace_lines, replace_text
from feddbp_common.evaluation import CountedEvaluations, CurrentAccuracy, SampleCounts
from feddbp_server.store import ReportRecord, Store

log = logging.getLogger("feddbp.server")


@dataclass(frozen=True, kw_only=True)
class Report:
    """One client's results in one round."""

    client_id: int
    round: int
    metrics: pb.RoundMetrics

    @classmethod
    def from_record(cls, record: ReportRecord) -> Report:
        metrics = pb.RoundMetrics.FromString(record.metrics)
        return cls(client_id=record.client_id, round=record.round, metrics=metrics)

    @property
    def test_samples(self) -> int:
        return self.metrics.test_samples

    @property
    def has_trained(self) -> bool:
        """Whether the client trained in the round, after the evaluation."""
        return bool(self.metrics.losses)

    @property
    def correct(self) -> int:
        """Correctly classified test samples, under the client's own inference rule."""
        return self._main.correct

    @property
    def validation_correct(self) -> int:
        """Correctly classified validation samples, under the client's own inference rule."""
        return self._main.validation_correct

    @property
    def _main(self) -> pb.Accuracy:
        metrics = self.metrics
        return next((entry for entry in metrics.accuracies if entry.rule == metrics.inference), pb.Accuracy())

    @property
    def accuracy(self) -> float:
        return self.correct / self.metrics.test_samples if self.metrics.test_samples else 0.0

    @property
    def counts(self) -> SampleCounts:
        return SampleCounts(
            correct=self.correct,
            samples=self.test_samples,
            validation_correct=self.validation_correct,
            validation_samples=self.metrics.validation_samples,
        )

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
            **self._validation(),
            **self._rare_classes(),
        }

    def _validation(self) -> dict[str, Any]:
        """Empty in a run that holds out no samples."""
        samples = self.metrics.validation_samples
        if not samples:
            return {}
        accuracies = {entry.rule: entry.validation_correct / samples for entry in self.metrics.accuracies}
        return {"validation_samples": samples, "validation_accuracies": accuracies}

    def _rare_classes(self) -> dict[str, Any]:
        """Empty for a client without test samples of rare classes."""
        samples = self.metrics.rare_test_samples
        return {"rare_test_samples": samples, "rare_accuracy": self.metrics.rare_correct / samples} if samples else {}


@dataclass
class Traffic:
    """Bytes sent and received, as clients report them."""

    up: int = 0
    down: int = 0

    def add(self, metrics: pb.RoundMetrics) -> None:
        self.up += metrics.bytes_up
        self.down += metrics.bytes_down


class _Accuracy:
    """Sums over the evaluations that count; integers, so that the order of reports does not matter."""

    def __init__(self) -> None:
        self.counted = CountedEvaluations[Report]()
        self._correct = 0
        self._samples = 0
        self._by_round: Counter[int] = Counter()
        """How many of the evaluations that count are of each round."""

    def add(self, report: Report) -> None:
        before = self.counted.by_client.get(report.client_id)
        self.counted.add(report)
        if self.counted.by_client.get(report.client_id) is before:
            return
        self._count(report, 1)
        if before is not None:
            self._count(before, -1)

    def after(self, completed_rounds: int | None) -> CurrentAccuracy | None:
        """None before the first evaluation that counts; by default after the newest round."""
        if not self._samples:
            return None
        newest = max(self._by_round) if completed_rounds is None else completed_rounds
        return CurrentAccuracy(
            accuracy=self._correct / self._samples,
            clients=len(self.counted.by_client),
            evaluated=self._by_round[newest],
        )

    def _count(self, report: Report, sign: int) -> None:
        self._correct += sign * report.correct
        self._samples += sign * report.test_samples
        self._by_round[report.round] += sign
        if not self._by_round[report.round]:
            del self._by_round[report.round]


class MetricsLog:
    """Owns `metrics.jsonl` and `summary.json`, and what status needs of the reports.

    The reports themselves are in the store: the files are rewritten from it on every start, and only sums and each
    client's newest report stay in memory.
    """

    def __init__(self, directory: Path) -> None:
        self._metrics = directory / METRICS_NAME
        self._summary = directory / SUMMARY_NAME
        self._newest: dict[int, Report] = {}
        self._accuracy = _Accuracy()
        self._trained_rounds: Counter[int] = Counter()
        """By client, in how many rounds it trained."""
        self._traffic: dict[int, Traffic] = defaultdict(Traffic)
        self.traffic = Traffic()
        """Of all clients."""
        self._file: io.FileIO | None = None
        """Open from the first line that is appended until the file is rewritten."""
        self._behind = False
        """A line could not be written: the file has to be rewritten."""

    def restore(self, reports: Iterable[Report]) -> None:
        """Rewrites the file and the sums from all reports, which it reads once."""
        self._write_metrics(self._counted(report) for report in reports)

    def add(self, report: Report) -> None:
        """Counts a report and appends its line; if that fails, the line is written at the end, from the store."""
        self._counted(report)
        try:
            if self._file is None:
                self._file = self._metrics.open("ab", buffering=0)
            append_line(self._file, _line(report))
        except OSError as error:
            if not self._behind:
                log.error(
                    "%s cannot be written: %s; it will be completed at the end of the run", METRICS_NAME, error.strerror
                )
            self._behind = True

    def complete(self, reports: Iterable[Report]) -> None:
        """Writes the lines that could not be written when their reports arrived."""
        if self._behind:
            self._write_metrics(reports)
            self._behind = False

    def close(self) -> None:
        """Closes the file, which the next report opens again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def newest_of(self, client_id: int) -> Report | None:
        return self._newest.get(client_id)

    def traffic_of(self, client_id: int) -> Traffic:
        return self._traffic.get(client_id) or Traffic()

    def accuracy(self, *, completed_rounds: int | None = None) -> CurrentAccuracy | None:
        """Of the run, as far as its clients have evaluated; None before the first evaluation after training."""
        return self._accuracy.after(completed_rounds)

    def counts(self, report: Report) -> bool:
        """Whether a client's newest report is in the run's accuracy."""
        return self._accuracy.counted.by_client.get(report.client_id) is report

    def first_round_of(self, client_id: int) -> int | None:
        """The round in which a client first trained."""
        return self._accuracy.counted.first_round(client_id)

    def trained_rounds_of(self, client_id: int) -> int:
        """In how many rounds a client trained."""
        return self._trained_rounds[client_id]

    def decisive_accuracy(self) -> float | None:
        """The accuracy by which a run is judged while it goes on: on held-out samples, if there are any."""
        counted = self._accuracy.counted.by_client.values()
        held_out = sum(report.metrics.validation_samples for report in counted)
        if held_out:
            return sum(report.validation_correct for report in counted) / held_out
        current = self.accuracy()
        return None if current is None else current.accuracy

    def reporters_of(self, round_number: int) -> frozenset[int]:
        """Clients whose newest report is on this round."""
        return frozenset(client for client, report in self._newest.items() if report.round == round_number)

    @property
    def summary_path(self) -> Path:
        return self._summary

    @property
    def has_summary(self) -> bool:
        return self._summary.exists()

    def remove_summary(self) -> None:
        if self._summary.is_file():
            self._summary.unlink()

    def write_summary(self, summary: dict[str, Any]) -> None:
        replace_text(self._summary, json.dumps(summary, indent=2) + "\n")

    def _write_metrics(self, reports: Iterable[Report]) -> None:
        self.close()
        replace_lines(self._metrics, map(_line, reports))

    def _counted(self, report: Report) -> Report:
        known = self._newest.get(report.client_id)
        if known is None or known.round <= report.round:
            self._newest[report.client_id] = report
        self._accuracy.add(report)
        self._trained_rounds[report.client_id] += report.has_trained
        self.traffic.add(report.metrics)
        self._traffic[report.client_id].add(report.metrics)
        return report


def reports_in(store: Store) -> Iterator[Report]:
    """All reports of a run; to be read in the store's thread, since there may be a million of them."""
    return map(Report.from_record, store.reports())


def _line(report: Report) -> str:
    return json.dumps(report.as_line())
