"""Snapshots of the global prototypes in `prototypes/`, for operators of a run that shares them."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile

import numpy as np

from feddbp_common.artifacts import CLIENT_PROTOTYPES_NAME, PROTOTYPES_DIR_NAME
from feddbp_common.atomic_files import WriteFailures
from feddbp_common.wire import PrototypeSet
from feddbp_server.aggregation.comparison import ComparedPrototypes

log = logging.getLogger("feddbp.server")

_MOST: Final = 40
"""Snapshots kept: enough for an animation of the whole run."""
_MOST_BYTES: Final = 64 << 20
_NAME: Final = re.compile(r"after-(\d+)\.npz")


class PrototypeSnapshots:
    """Owns the directory `prototypes/`: the first, the newest, and evenly spaced snapshots in between."""

    def __init__(self, state_dir: Path) -> None:
        self._directory = state_dir / PROTOTYPES_DIR_NAME
        self._failures = WriteFailures(log, "prototypes", lost="snapshots")

    def forget(self) -> None:
        """Begins a new run."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def save(self, completed_rounds: int, prototypes: PrototypeSet) -> None:
        """Writes a snapshot, and removes others where there are too many; a failure is only logged."""
        try:
            self._directory.mkdir(exist_ok=True)
            arrays = {"class_ids": prototypes.class_ids, "vectors": prototypes.vectors}
            _write(self._directory / f"after-{completed_rounds:06}.npz", arrays)
            self._thin(prototypes.vectors.nbytes)
        except OSError as error:
            self._failures.add(error)
        else:
            self._failures.end()

    def save_clients(self, compared: Iterable[ComparedPrototypes]) -> None:
        """Writes how every client's last upload differs from the global prototypes."""
        rows = list(compared)
        if not rows:
            return
        try:
            self._directory.mkdir(exist_ok=True)
            _write(
                self._directory / CLIENT_PROTOTYPES_NAME,
                {
                    "client_ids": np.concatenate([np.full(len(row), row.client_id, np.int32) for row in rows]),
                    "class_ids": np.concatenate([row.class_ids for row in rows]),
                    "samples": np.concatenate([row.samples for row in rows]),
                    "distances": np.concatenate([row.distances for row in rows]),
                    "cosines": np.concatenate([row.cosines for row in rows]),
                    "kept": np.concatenate([np.packbits(row.kept, axis=1) for row in rows]),
                    "channels": np.array(rows[0].kept.shape[1], np.int32),
                },
            )
        except OSError as error:
            self._failures.add(error)
        else:
            self._failures.end()

    def rounds(self) -> list[int]:
        """Completed rounds of every snapshot, ascending."""
        return sorted(snapshot_files(self._directory.parent))

    def read(self, completed_rounds: int) -> PrototypeSet | None:
        """None if there is none, or no longer."""
        return read_snapshot(self._directory / f"after-{completed_rounds:06}.npz")

    def _thin(self, size: int) -> None:
        most = max(3, min(_MOST, _MOST_BYTES // max(size, 1)))
        rounds, step = self.rounds(), 1
        while rounds[-1] // step > most - 2:
            step *= 2
        for number in rounds[1:-1]:
            if number % step == 0:
                continue
            with suppress(FileNotFoundError):
                (self._directory / f"after-{number:06}.npz").unlink()


def snapshot_files(state_dir: Path) -> dict[int, Path]:
    """The snapshots in a state directory, by completed rounds."""
    found: dict[int, Path] = {}
    with suppress(OSError):
        for path in (state_dir / PROTOTYPES_DIR_NAME).iterdir():
            if match := _NAME.fullmatch(path.name):
                found[int(match[1])] = path
    return found


def read_snapshot(path: Path) -> PrototypeSet | None:
    """None if the file is missing or damaged."""
    with suppress(OSError, ValueError, KeyError, BadZipFile), np.load(path, allow_pickle=False) as stored:
        class_ids, vectors = stored["class_ids"].astype(np.int32), stored["vectors"].astype(np.float32)
        if vectors.ndim == 2 and len(class_ids) == len(vectors):
            return PrototypeSet(class_ids=class_ids, vectors=vectors)
    return None


def _write(path: Path, arrays: Mapping[str, Any]) -> None:
    """Replaces a file in one step: a dashboard may be reading."""
    scratch = path.with_suffix(".tmp")
    with scratch.open("wb") as file:
        np.savez(file, **arrays)
    scratch.replace(path)
