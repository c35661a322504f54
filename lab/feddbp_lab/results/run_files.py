"""The files of a run: what its server wrote, wherever they are, and the runs in a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from zipfile import BadZipFile

import numpy as np

from feddbp_common.artifacts import (
    AUDIT_NAME,
    CLIENT_PROTOTYPES_NAME,
    CLIENTS_NAME,
    DATABASE_NAME,
    PROTOTYPES_DIR_NAME,
    ROUNDS_NAME,
    SERVER_LOCK_NAME,
    SUMMARY_NAME,
)
from feddbp_common.errors import ConfigurationError
from feddbp_common.evaluation import CountedEvaluations
from feddbp_common.file_lock import is_locked
from feddbp_common.printable import printable_values
from feddbp_common.wire import PrototypeSet
from feddbp_lab.results.audit_entries import AuditEntry, troubles
from feddbp_lab.results.damage import DAMAGE
from feddbp_lab.results.run_results import EvaluationLine, RunResults, has_metrics
from feddbp_server.reporting.history import RoundRecord, read_rounds
from feddbp_server.reporting.json_lines import JsonLines
from feddbp_server.reporting.prototype_snapshots import read_snapshot, snapshot_files

T = TypeVar("T")
Json = dict[str, Any]
_AUDIT_BYTES: Final = 4 << 20
_MOST_RUNS: Final = 2000


@dataclass(frozen=True)
class RunFiles:
    """The directory of a run; a demo's and a cell's have the server's state in `server/`, as long as it is kept."""

    path: Path
    _notes: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    """By the name of a file."""

    @property
    def state(self) -> Path:
        inner = self.path / "server"
        return inner if not (self.path / ROUNDS_NAME).exists() and inner.is_dir() else self.path

    def is_served(self) -> bool:
        """Whether a server has the run open; one on another machine only where the file system shares locks."""
        with suppress(PermissionError):
            return is_locked(self.state / SERVER_LOCK_NAME)
        return False

    def results(self) -> RunResults:
        for directory in dict.fromkeys((self.path, self.state)):
            if (directory / SUMMARY_NAME).exists() and has_metrics(directory):
                return RunResults.read(directory)
        found = RunResults.read_unfinished(self.state)
        if found is None:
            raise ConfigurationError(f"{self.path} has neither a {SUMMARY_NAME} nor a {DATABASE_NAME}")
        return found

    @property
    def notes(self) -> list[str]:
        """What had to be left out of the files that were read so far, for people."""
        return list(self._notes.values())

    def rounds(self) -> list[RoundRecord]:
        return self._noted(ROUNDS_NAME, read_rounds)

    def clients(self) -> dict[int, Json]:
        """What clients said when they joined; the last line of a client counts."""
        return dict(self._noted(CLIENTS_NAME, lambda path: JsonLines.read(path, _joined)))

    def troubles(self) -> Json:
        """Refusals by reason and the last incidents, from the end of the audit log, which may have a new file."""
        newest, before = self.state / AUDIT_NAME, f"{AUDIT_NAME}.1"
        try:
            older = max(0, _AUDIT_BYTES - newest.stat().st_size)
        except OSError:  # a server that is running may begin a new file at any time
            older = _AUDIT_BYTES
        return troubles([*self._audited(before, older), *self._audited(AUDIT_NAME, _AUDIT_BYTES)])

    def _audited(self, name: str, last_bytes: int) -> list[AuditEntry]:
        read = partial(JsonLines.read, parse=AuditEntry.from_dict, last_bytes=last_bytes)
        return self._noted(name, read)

    def _noted(self, name: str, read: Callable[[Path], JsonLines[T]]) -> list[T]:
        """Reads a file, and notes what is damaged in it."""
        try:
            found = read(self.state / name)
        except OSError as error:
            self._notes[name] = f"{name} cannot be read: {error.strerror}"
            return []
        self._notes.pop(name, None)
        if found.damaged:
            self._notes[name] = found.note(name)
        return found.entries

    def snapshots(self) -> dict[int, PrototypeSet]:
        read = {number: read_snapshot(path) for number, path in snapshot_files(self.state).items()}
        return {number: found for number, found in read.items() if found is not None}

    def client_prototypes(self, client_id: int) -> list[Json]:
        path = self.state / PROTOTYPES_DIR_NAME / CLIENT_PROTOTYPES_NAME
        with suppress(*DAMAGE, BadZipFile), np.load(path, allow_pickle=False) as stored:
            rows, channels = np.flatnonzero(stored["client_ids"] == client_id), int(stored["channels"])
            kept = np.unpackbits(stored["kept"][rows], axis=1, count=channels)
            columns = {name: stored[name][rows] for name in ("class_ids", "samples", "distances", "cosines")}
            return [
                client_prototype(
                    class_id=int(columns["class_ids"][row]),
                    samples=int(columns["samples"][row]),
                    distance=float(columns["distances"][row]),
                    cosine=float(columns["cosines"][row]),
                    channels=channels,
                    kept=np.flatnonzero(kept[row]).tolist(),
                )
                for row in range(len(rows))
            ]
        return []


def client_prototype(
    *, class_id: int, samples: int, distance: float, cosine: float, channels: int, kept: list[int]
) -> Json:
    """How one of a client's prototypes differs from the global one, for a page."""
    return {
        "class": class_id,
        "samples": samples,
        "distance": round(distance, 4),
        "cosine": round(cosine, 4),
        "channels": channels,
        "kept": kept,
    }


def _joined(entry: Json) -> tuple[int, Json]:
    printable = printable_values(entry)
    return int(printable["client"]), printable


def find_runs(directory: Path) -> list[Path]:
    """The runs in a folder: itself, the cells of an experiment, or its subdirectories."""
    if not directory.is_dir():
        raise ConfigurationError(f"{directory}: no such directory")
    if _is_run(directory):
        return [directory]
    found = sorted(path for path in _candidates(directory) if _may_be_run(path))[:_MOST_RUNS]
    if not found:
        raise ConfigurationError(
            f"{directory} holds no run: neither a {SUMMARY_NAME} nor a {DATABASE_NAME}, nor folders with one"
        )
    return found


def _candidates(directory: Path) -> Iterator[Path]:
    for pattern in ("*/", "cells/*/"):
        yield from (path for path in directory.glob(pattern) if path.is_dir())


def _may_be_run(path: Path) -> bool:
    """A folder that may not be looked into counts as a run, so that it is named beside the others."""
    try:
        return _is_run(path)
    except PermissionError:
        return True


def _is_run(path: Path) -> bool:
    return any((folder / name).exists() for folder in (path, path / "server") for name in (SUMMARY_NAME, DATABASE_NAME))


def last_accuracies(metrics: Iterable[dict[str, Any]]) -> dict[int, float]:
    """Every client's newest accuracy that counts in the run's: after its own first training."""
    counted = CountedEvaluations[EvaluationLine]()
    for evaluation in sorted(map(EvaluationLine, metrics), key=lambda evaluation: evaluation.round):
        counted.add(evaluation)
    return {client: float(evaluation.line["accuracy"]) for client, evaluation in counted.by_client.items()}
