"""Reads the files a run has written: its summary and its metrics."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feddbp_common.artifacts import METRICS_NAME, PACKED_METRICS_NAME, SUMMARY_NAME
from feddbp_common.evaluation import CountedEvaluations, CurrentAccuracy
from feddbp_common.printable import printable_values
from feddbp_server.reporting.unfinished import stored_metrics, summarise_unfinished


@dataclass(frozen=True, kw_only=True)
class RunResults:
    """A run's `summary.json`, and the lines of its `metrics.jsonl`."""

    summary: dict[str, Any]
    metrics: list[dict[str, Any]]

    @classmethod
    def read(cls, directory: Path) -> RunResults:
        """Raises OSError for a file that cannot be read, and ValueError, naming file and line, for a damaged one."""
        summary, metrics = read_summary(directory), _metrics(_metrics_text(directory))
        if not any(has_trained(line) or "trained" in line for line in metrics):
            # packed before lines said so: cells kept then have every client in every round
            metrics = [{**line, "trained": line["round"] < summary["completed_rounds"]} for line in metrics]
        return cls(summary=summary, metrics=metrics)

    @classmethod
    def read_unfinished(cls, directory: Path) -> RunResults | None:
        """A run that has not ended, from the state directory of its server; None if there is none."""
        summary = printable_values(summarise_unfinished(directory))
        if summary is None:
            return None
        return cls(summary=summary, metrics=printable_values(list(stored_metrics(directory))))

    def accuracies(self, client: int) -> dict[int, float]:
        """A client's accuracy by the number of completed rounds, since its first training."""
        lines = self._lines_of(client)
        first = next((line["round"] for line in lines if has_trained(line)), 0)
        return {line["round"]: line["accuracy"] for line in lines if line["test_samples"] and line["round"] > first}

    def trained_rounds(self, client: int) -> list[int]:
        """The rounds in which a client trained, counted from 1."""
        return [line["round"] + 1 for line in self._lines_of(client) if has_trained(line)]

    def mean_losses(self) -> dict[str, dict[int, float]]:
        """The mean over clients of every loss term, by the round in which it was minimised, counted from 1."""
        values: dict[str, dict[int, list[float]]] = {}
        for line in self.metrics:
            for name, value in line["losses"].items():
                if value is not None:  # None: it was not finite
                    values.setdefault(name, {}).setdefault(line["round"] + 1, []).append(value)
        return {
            name: {number: sum(found) / len(found) for number, found in sorted(rounds.items())}
            for name, rounds in values.items()
        }

    def _lines_of(self, client: int) -> list[dict[str, Any]]:
        return sorted((line for line in self.metrics if line["client"] == client), key=lambda line: int(line["round"]))


def read_summary(directory: Path) -> dict[str, Any]:
    """Raises as `RunResults.read` does."""
    summary: dict[str, Any] = printable_values(read_object(directory / SUMMARY_NAME))
    return summary


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object that is the whole content of a file; raises as `RunResults.read` does."""
    return _object(path.read_bytes(), path.name)


def has_metrics(directory: Path) -> bool:
    """Whether `RunResults.read` finds metrics beside the summary."""
    return any((directory / name).exists() for name in (METRICS_NAME, PACKED_METRICS_NAME))


def has_trained(line: Mapping[str, Any]) -> bool:
    """Whether the client trained in the round of a line; packed lines have no losses, and say so instead."""
    return bool(line.get("trained", line.get("losses")))


@dataclass(frozen=True)
class EvaluationLine:
    """A line of `metrics.jsonl`, as an evaluation of `feddbp_common.evaluation`."""

    line: Mapping[str, Any]

    @property
    def client_id(self) -> int:
        return int(self.line["client"])

    @property
    def round(self) -> int:
        return int(self.line["round"])

    @property
    def test_samples(self) -> int:
        return int(self.line["test_samples"])

    @property
    def has_trained(self) -> bool:
        return has_trained(self.line)


class MetricsTail:
    """Reads a metrics file that is still being written, from where the last read ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def new_lines(self) -> list[dict[str, Any]]:
        """Complete lines only; none if there is no file yet."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                added = file.read()
        except FileNotFoundError:
            return []
        complete = added[: added.rfind(b"\n") + 1]
        self._read += len(complete)
        return [printable_values(json.loads(line)) for line in complete.splitlines()]


def accuracy_after(evaluations: CountedEvaluations[EvaluationLine], completed_rounds: int) -> CurrentAccuracy | None:
    """The accuracy of a run by the evaluations up to these rounds; None if none counts."""
    counted = evaluations.by_client.values()
    samples = sum(found.test_samples for found in counted)
    if not samples:
        return None
    return CurrentAccuracy(
        accuracy=sum(found.line["accuracy"] * found.test_samples for found in counted) / samples,
        clients=len(counted),
        evaluated=sum(found.round == completed_rounds for found in counted),
    )


def _metrics_text(directory: Path) -> bytes:
    packed = directory / PACKED_METRICS_NAME
    if not packed.exists():
        return (directory / METRICS_NAME).read_bytes()
    try:
        return gzip.decompress(packed.read_bytes())
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{PACKED_METRICS_NAME}: {error}") from None


def _metrics(text: bytes) -> list[dict[str, Any]]:
    lines = enumerate(text.splitlines(), 1)
    return [printable_values(_object(line, f"{METRICS_NAME}, line {number}")) for number, line in lines]


def _object(text: bytes, origin: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{origin}: {error}") from None
    if not isinstance(parsed, dict):
        raise ValueError(f"{origin}: not an object")
    return parsed
