"""Copies of a cell's working state at --out, from which the cell resumes on another node.

cells/ID/copy-000002-0003.tar   the third copy of the second attempt
cells/ID/copy-000002.json       names the newest whole copy of that attempt, with its size and digest; written last
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from feddbp_common.artifacts import CELL_CONFIG_NAME, CELL_COST_NAME, DATA_CACHE_NAME
from feddbp_lab.experiments.run.cell_dir import STATE_DIRS
from feddbp_lab.experiments.run.lease import Lease, cell_key
from feddbp_lab.experiments.run.store import Store

_CONTENT: Final = (*STATE_DIRS, "logs", CELL_CONFIG_NAME, CELL_COST_NAME)
_MANIFEST: Final = re.compile(r"copy-(\d+)\.json")
_FILE: Final = re.compile(r"copy-(\d+)(-\d+\.tar|\.json)")
_DIGEST: Final = "sha256"


class CellCopies:
    """Writes the copies of one attempt, and finds the newest of all attempts."""

    def __init__(self, store: Store, cell_id: str) -> None:
        self._store = store
        self._cell_id = cell_id
        self._number = 0

    def save(self, directory: Path, lease: Lease, *, still: AbstractContextManager[None]) -> None:
        """Copies the state in a directory that does not change inside of `still`.

        Raises LeaseLostError, and leaves the copies of the cell's new holder alone, if the cell was taken over.
        """
        self._number += 1
        name = f"copy-{lease.epoch:06d}-{self._number:04d}.tar"
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix="copy-") as staging:
            archive = Path(staging) / name
            with still:
                _pack(directory, archive)
            manifest = {"file": name, "bytes": archive.stat().st_size, _DIGEST: _digest(archive)}
            lease.verify()
            self._store.upload(archive, self._key(name))
        lease.verify()
        own = f"copy-{lease.epoch:06d}.json"
        self._store.write(self._key(own), (json.dumps(manifest) + "\n").encode())
        self._delete(up_to=lease.epoch, keep={name, own})

    def restore(self, directory: Path) -> bool:
        """Unpacks the newest whole copy into a directory; false if there is none."""
        for epoch in sorted(self._epochs(), reverse=True):
            with tempfile.TemporaryDirectory(dir=directory.parent, prefix="copy-") as staging:
                archive = Path(staging) / "copy.tar"
                if self._fetch(epoch, archive):
                    directory.mkdir(parents=True, exist_ok=True)
                    with tarfile.open(archive) as packed:
                        packed.extractall(directory, filter="data")
                    return True
        return False

    @property
    def exist(self) -> bool:
        return bool(self._epochs())

    def delete(self) -> None:
        self._delete(up_to=None, keep=set())

    def _fetch(self, epoch: int, archive: Path) -> bool:
        """Downloads the copy of an attempt; false if it is not whole."""
        try:
            manifest: dict[str, Any] = json.loads(self._store.read(self._key(f"copy-{epoch:06d}.json")) or b"")
            self._store.download(self._key(str(manifest["file"])), archive)
        except (ValueError, KeyError, TypeError, FileNotFoundError):
            return False
        return bool(archive.stat().st_size == manifest.get("bytes") and _digest(archive) == manifest.get(_DIGEST))

    def _epochs(self) -> list[int]:
        found = map(_MANIFEST.fullmatch, self._store.names(cell_key(self._cell_id)))
        return [int(match[1]) for match in found if match]

    def _delete(self, *, up_to: int | None, keep: set[str]) -> None:
        names = self._store.names(cell_key(self._cell_id))
        old = [match[0] for match in map(_FILE.fullmatch, names) if match and (not up_to or int(match[1]) <= up_to)]
        # manifests first: none ever names a copy that is gone
        old.sort(key=lambda name: not name.endswith(".json"))
        self._store.delete(self._key(name) for name in old if name not in keep)

    def _key(self, name: str) -> str:
        return cell_key(self._cell_id, name)


def _pack(directory: Path, archive: Path) -> None:
    with tarfile.open(archive, "w") as packed:
        for name in _CONTENT:
            if (directory / name).exists():
                packed.add(directory / name, arcname=name, filter=_state_only)


def _state_only(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leaves out what is rebuilt: decoded images, and the index of SQLite's log, which belongs to one machine."""
    is_rebuilt = DATA_CACHE_NAME in Path(entry.name).parts or entry.name.endswith("-shm")
    return entry if not is_rebuilt and (entry.isfile() or entry.isdir()) else None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, _DIGEST).hexdigest()
