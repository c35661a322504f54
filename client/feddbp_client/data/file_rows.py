"""Image files as rows that are decoded when they are read: a folder of any size takes little memory."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import PIL

from feddbp_client.data.decoding import FLOAT32, decode
from feddbp_client.data.images import DataError, UnreadableImageError
from feddbp_client.data.progress import Progress
from feddbp_client.data.row_cache import RowCache, open_cache
from feddbp_common.cpu_cores import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    import numpy.typing as npt

    from feddbp_client.data.row_cache import CacheSpace

_MOST_THREADS: Final = 8
"""Each holds a whole picture while it decodes; photographs have tens of megabytes."""
_WINDOW: Final = 256
"""Rows that are handed to the threads at once: a process that ends waits for those."""
_DECODING: Final = "1"
"""To be changed when the same file gives other pixels: caches of before are then not used."""


@cache
def decoding_threads() -> ThreadPoolExecutor:
    """The threads in which all clients of this process decode images.

    Threads instead of processes: Pillow releases the interpreter while it decodes and resizes, and a process would have
    to send every image back.
    """
    return ThreadPoolExecutor(_threads(), thread_name_prefix="decode")


def _threads() -> int:
    return min(usable_cores(), _MOST_THREADS)


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFiles:
    """Image files below a folder, with the size and the time of change they had when they were listed."""

    root: Path
    names: list[str]
    """Paths below the root; a list of strings, because a Path takes ten times the memory."""
    sizes: npt.NDArray[np.int64]
    changed: npt.NDArray[np.int64]
    """Nanoseconds."""

    def __len__(self) -> int:
        return len(self.names)

    def path(self, row: int) -> str:
        return f"{self.root}/{self.names[row]}"

    def without(self, rows: Collection[int]) -> ImageFiles:
        kept = np.array([row not in rows for row in range(len(self))], dtype=np.bool_)
        names = [name for name, keep in zip(self.names, kept, strict=True) if keep]
        return ImageFiles(root=self.root, names=names, sizes=self.sizes[kept], changed=self.changed[kept])

    def is_unchanged(self, row: int) -> bool:
        try:
            found = (self.root / self.names[row]).stat()
        except OSError:
            return False
        return (found.st_size, found.st_mtime_ns) == (self.sizes[row], self.changed[row])

    def digest(self, *context: object) -> str:
        """Identifies the listing, and whatever else is given, as 64 hexadecimal digits."""
        digest = hashlib.sha256("\0".join(map(str, context)).encode())
        digest.update("\0".join(self.names).encode("utf-8", "surrogateescape"))
        digest.update(self.sizes.tobytes() + self.changed.tobytes())
        return digest.hexdigest()


class FileRows:
    """Image files as RGB squares [N, side, side, 3] of one pixel type; decoded rows are cached on disk.

    Rows that do not fit into the cache are decoded whenever they are read. They are always the same: every epoch reads
    every row once, so replacing those read longest ago would replace each just before it is read again.
    """

    def __init__(self, files: ImageFiles, *, side: int, dtype: np.dtype[Any], space: CacheSpace | None = None) -> None:
        self.files = files
        self.shape: tuple[int, ...] = (len(files), side, side, 3)
        self.dtype = dtype
        self.cache = None if space is None else self._open_cache(space)
        known = np.zeros(len(files), dtype=np.bool_) if self.cache is None else self.cache.written()
        self._known = known
        """Rows decoded before; of float images, their extremes are known."""
        self._extremes = np.full((len(files), 2), np.nan, dtype=np.float32) if dtype == FLOAT32 else None
        if self._extremes is not None and self.cache is not None:
            self._extremes[known] = self.cache.extremes()[known]
        self._progress = Progress("decoded", int((~known).sum()))

    def _open_cache(self, space: CacheSpace) -> RowCache | None:
        # The version of Pillow: another one may round differently.
        key = self.files.digest(_DECODING, PIL.__version__, *self.shape[1:], self.dtype)
        return open_cache(space, key, rows=len(self), row_bytes=self.nbytes // len(self))

    @property
    def nbytes(self) -> int:
        """The size of all rows, decoded."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        out = np.empty((len(rows), *self.shape[1:]), dtype=self.dtype)
        wanted = rows.tolist()

        def fill(at: int) -> None:
            out[at] = self._decoded(wanted[at])

        _run(fill, range(len(wanted)) if self.cache is None else _read_cached(self.cache, wanted, out))
        return out

    def select(self, rows: npt.NDArray[np.int64]) -> RowSelection:
        return RowSelection(self, rows)

    def in_memory(self) -> tuple[npt.NDArray[Any], dict[int, str]]:
        """All rows as one array, decoded in several threads, and by row, why it could not be decoded."""
        out = np.zeros(self.shape, dtype=self.dtype)
        unreadable: dict[int, str] = {}

        def fill(row: int) -> None:
            try:
                out[row] = self._decoded(row)
            except UnreadableImageError as error:
                unreadable[row] = error.reason

        _run(fill, range(len(self)))
        return out, unreadable

    def unreadable(self) -> dict[int, str]:
        """Decodes what is not cached, and with it learns the extremes of floats; by row, why that failed."""
        found: dict[int, str] = {}

        def check(row: int) -> None:
            try:
                self._decoded(row)
            except UnreadableImageError as error:
                found[row] = error.reason

        _run(check, np.flatnonzero(~self._known).tolist())
        return found

    def extremes(self, rows: npt.NDArray[np.int64]) -> tuple[float, float]:
        """The lowest and the highest pixel of these rows, of float images that were measured."""
        assert self._extremes is not None
        return float(self._extremes[rows, 0].min()), float(self._extremes[rows, 1].max())

    def _decoded(self, row: int) -> npt.NDArray[Any]:
        path = self.files.path(row)
        try:
            pixels = decode(path, origin=path, size=self.shape[1], dtype=self.dtype)
        except UnreadableImageError as error:
            remedy = (
                f"`feddbp data check {self.files.root}` lists all such files; remove them, or give --skip-unreadable"
            )
            raise UnreadableImageError(path, error.reason, remedy) from error
        # Compared after it was read: a change meanwhile must not enter the cache either.
        if not self.files.is_unchanged(row):
            raise DataError(f"{path}: was changed after the client had listed its images; start the client again")
        extremes = (0.0, 0.0)
        if self._extremes is not None:
            extremes = float(pixels.min()), float(pixels.max())
            self._extremes[row] = extremes
        if self.cache is not None:
            self.cache.write(row, np.ascontiguousarray(pixels), extremes)
        if not self._known[row]:
            self._known[row] = True
            self._progress.advance()
        return pixels


@dataclass(frozen=True, eq=False)
class RowSelection:
    """Some rows of image files, in an order of their own, decoded when they are read."""

    source: FileRows
    rows: npt.NDArray[np.int64]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows), *self.source.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.source.dtype

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        return self.source[self.rows[rows]]

    def extremes(self) -> tuple[float, float]:
        return self.source.extremes(self.rows)


def _read_cached(cached: RowCache, rows: list[int], out: npt.NDArray[Any]) -> list[int]:
    """Reads into out what is cached; returns the positions of the other rows."""
    stride = min(_threads(), len(rows))

    def read(start: int) -> list[int]:
        return [at for at in range(start, len(rows), stride) if not cached.read(rows[at], out[at])]

    # In several threads: data larger than memory come from the disk, which serves several reads at once.
    return sorted(chain.from_iterable(decoding_threads().map(read, range(stride))))


def _run(work: Callable[[int], object], items: Iterable[int]) -> None:
    """Calls work on every item in the decoding threads; raises the first error."""
    remaining = list(items)
    for start in range(0, len(remaining), _WINDOW):
        for _ in decoding_threads().map(work, remaining[start : start + _WINDOW]):
            pass
