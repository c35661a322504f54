"""Decoded images on disk: one file of fixed-size rows for each set of images, shared between processes.

A file has a record for each row, and then the rows. A row is written before its record, and the record has the row's
checksum, which every read verifies: whenever a process or the machine stops, no incomplete row is ever served. All
processes write the same bytes into a row, so rows need no lock.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import weakref
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from feddbp_common.file_lock import FileLock
from feddbp_common.humanize import human_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

_log = logging.getLogger(__name__)

_RECORD: Final = np.dtype([("mark", "<u4"), ("checksum", "<u4"), ("low", "<f4"), ("high", "<f4")])
_WRITTEN: Final = 0x524F5753
"""The mark of a record that was written; a new file has zeros."""
_NAME: Final = re.compile(r"[0-9a-f]{64}\.rows")
"""Other files in the folder are never removed."""
_LOCK_NAME: Final = ".lock"
_SHARE_OF_FREE_SPACE: Final = 0.5
"""The rest is left for checkpoints and other programs."""


@dataclass(frozen=True, kw_only=True)
class CacheSpace:
    """A folder for caches, and the bytes that all of them may take together."""

    directory: Path
    size: int


class RowCache:
    """An open cache file; its first `capacity` rows can be read and written, from any thread."""

    def __init__(self, path: Path, descriptor: int, *, rows: int, row_bytes: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._row_bytes = row_bytes
        self._first = rows * _RECORD.itemsize
        self.capacity = max(0, min(rows, (os.fstat(descriptor).st_size - self._first) // row_bytes))
        self._records = np.zeros(rows, dtype=_RECORD)
        os.preadv(descriptor, [self._records.data], 0)
        self._writable = True
        weakref.finalize(self, os.close, descriptor)

    def has(self, row: int) -> bool:
        """Whether the row was written, perhaps by another process; only reading it tells whether it is undamaged."""
        if row < self.capacity and self._records["mark"][row] != _WRITTEN:
            os.preadv(self._descriptor, [self._records[row : row + 1].data], row * _RECORD.itemsize)
        return row < self.capacity and bool(self._records["mark"][row] == _WRITTEN)

    def written(self) -> npt.NDArray[np.bool_]:
        """For each row, whether it was written when the cache was opened or since, by this process."""
        marked: npt.NDArray[np.bool_] = self._records["mark"] == _WRITTEN
        return marked & (np.arange(len(marked)) < self.capacity)

    def extremes(self) -> npt.NDArray[np.float32]:
        """The lowest and the highest pixel of each row that was written, [rows, 2]."""
        return np.stack([self._records["low"], self._records["high"]], axis=1)

    def read(self, row: int, out: npt.NDArray[Any]) -> bool:
        """Reads a row into out, which is contiguous; False if the cache does not have it undamaged."""
        if not self.has(row):
            return False
        # Read instead of mapped: mapped pages count as resident memory of this process, which would grow with the data
        # and might be killed for it. Pages in the kernel's cache do not count.
        if os.preadv(self._descriptor, [out.data], self._offset(row)) != self._row_bytes:
            return False
        return bool(zlib.crc32(out.data, row) == self._records["checksum"][row])

    def write(self, row: int, pixels: npt.NDArray[Any], extremes: tuple[float, float]) -> None:
        """Writes a row if there is room for it; a failing disk only makes the cache useless."""
        if row >= self.capacity or not self._writable:
            return
        record = np.array([(_WRITTEN, zlib.crc32(pixels.data, row), *extremes)], dtype=_RECORD)
        try:
            self._write_all(pixels, self._offset(row))
            self._write_all(record, row * _RECORD.itemsize)
        except OSError as error:
            self._writable = False
            _log.warning("%s: cannot be written (%s): images that are not in it are decoded again", self._path, error)
        else:
            self._records[row] = record[0]

    def _offset(self, row: int) -> int:
        return self._first + row * self._row_bytes

    def _write_all(self, content: npt.NDArray[Any], offset: int) -> None:
        remaining = content.reshape(-1).view(np.uint8).data
        while remaining:
            written = os.pwrite(self._descriptor, remaining, offset)
            remaining, offset = remaining[written:], offset + written


def open_cache(space: CacheSpace, key: str, *, rows: int, row_bytes: int) -> RowCache | None:
    """Opens the cache of this key (64 hexadecimal digits), or creates it; None if there is no room or no access.

    Caches that no process uses are removed, the longest unused first, while all together would exceed the space.
    """
    if not space.size:
        return None
    path = space.directory / f"{key}.rows"
    try:
        # Decoded images are as private as the images.
        space.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with FileLock(space.directory / _LOCK_NAME, wait=True, mode=0o600):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)  # held while it is open: the mark of a cache in use
                os.utime(descriptor)
                _resize(descriptor, path, space, rows * (_RECORD.itemsize + row_bytes))
                cache = RowCache(path, descriptor, rows=rows, row_bytes=row_bytes)
            except BaseException:
                os.close(descriptor)
                raise
    except OSError as error:
        _log.warning("%s: cannot be used as a cache: %s", space.directory, error.strerror or error)
        return None
    return cache if cache.capacity else None


def _resize(descriptor: int, path: Path, space: CacheSpace, wanted: int) -> None:
    """Gives the file the size it may have; the file is sparse, so what is not written takes no space on the disk."""
    found = os.fstat(descriptor)
    others = _remove_unused(path, space.size - wanted)
    free = shutil.disk_usage(space.directory).free
    on_disk = found.st_blocks * 512
    allowed = min(wanted, space.size - others, on_disk + int(free * _SHARE_OF_FREE_SPACE))
    if found.st_size < allowed:
        os.ftruncate(descriptor, allowed)
    elif found.st_size > allowed:
        if _locked_exclusively(descriptor):
            os.ftruncate(descriptor, max(0, allowed))
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # also after a failure, which may have lost the shared lock


def _remove_unused(own: Path, allowed: int) -> int:
    """Removes other caches until the rest has at most `allowed` bytes, or all are in use; returns the bytes left."""
    others = [path for path in own.parent.iterdir() if path != own and _NAME.fullmatch(path.name)]
    found = sorted(((path.stat(), path) for path in others), key=lambda entry: entry[0].st_mtime)
    total = sum(status.st_size for status, _ in found)
    for status, path in found:
        if total <= allowed:
            break
        with path.open("r+b") as file:
            if _locked_exclusively(file.fileno()):
                path.unlink()
                total -= status.st_size
                _log.info("removed the unused cache %s (%s)", path, human_bytes(status.st_size))
    return total


def _locked_exclusively(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
