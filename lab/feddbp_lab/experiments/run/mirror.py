"""A local mirror of results at an fsspec address: what `status` and `report` read, without the state of cells."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from feddbp_common.artifacts import CELL_CONFIG_NAME, METRICS_NAME, PACKED_METRICS_NAME, SUMMARY_NAME
from feddbp_lab.experiments.run.store import FsspecStore

_MIRRORED: Final = re.compile(r"(config|summary|cost|failure|lease-\d+)\.json|metrics\.jsonl(\.gz)?")
_FINAL: Final = (CELL_CONFIG_NAME, METRICS_NAME, PACKED_METRICS_NAME, SUMMARY_NAME)
"""Files that do not change once the cell is done; an attempt that was killed may have left metrics before."""


class Mirror:
    """Files of an address in a temporary directory."""

    def __init__(self, address: str, directory: tempfile.TemporaryDirectory[str]) -> None:
        self.address = address.rstrip("/")
        self.store = FsspecStore(self.address)
        self._directory = directory
        self.path = Path(directory.name)

    def refresh(self, cells: Iterable[str] | None = None) -> None:
        """Downloads what is new of these cells or, without any given, of all cells and the plans."""
        if cells is None:
            for folder in ("experiments", "experiments/cells"):
                for name in self.store.names(folder):
                    if name.endswith(".json"):
                        self._download(f"{folder}/{name}")
            cells = self.store.names("cells")
        for cell in cells:
            self._refresh_cell(cell)

    def upload(self, path: Path) -> None:
        """Uploads a file of the mirror, or all files of a folder."""
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                self.store.upload(file, file.relative_to(self.path).as_posix())

    def _refresh_cell(self, cell: str) -> None:
        found = [name for name in self.store.names(f"cells/{cell}") if _MIRRORED.fullmatch(name)]
        directory = self.path / "cells" / cell
        for path in directory.glob("*"):
            if path.name not in found:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        is_done = (directory / SUMMARY_NAME).exists()
        for name in found:
            if not (is_done and name in _FINAL and (directory / name).exists()):
                self._download(f"cells/{cell}/{name}")

    def _download(self, key: str) -> None:
        content = self.store.read(key)
        if content is None:
            return  # removed meanwhile
        path = self.path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
