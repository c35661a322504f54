"""The bodies of uploads, in one file beside the database whose space is recycled.

The database decides what is in the file: a row names where its body begins, and is committed only after the body is on
the disk. Everything that no committed row names is free, whatever it holds: a record that a crash has torn, one whose
transaction was rolled back, or one whose row was deleted. So recovery is to read the rows, and space is reused only
once the deletion of its row is committed. Each record begins with a header, by which a row and a body that do not
belong together are found out.
"""

from __future__ import annotations

import bisect
import errno
import fcntl
import os
import sqlite3
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from feddbp_common.atomic_files import fsync_path
from feddbp_common.fault_injection import fault_point

BLOCK: Final = 4096
"""Records begin and end at multiples of this: a page of the cache is always written whole, never read first."""
_MAGIC: Final = b"FDBPBODY"
_HEADER: Final = struct.Struct("<8sQQQ32s")
_CHECKSUM: Final = struct.Struct("<I")
HEADER_BYTES: Final = _HEADER.size + _CHECKSUM.size
_TRIM_BYTES: Final = 64 << 20
"""A free end of the file of at least this size and of half of the file is given back to the disk."""

Mark: TypeAlias = tuple[int, int]


class Place(NamedTuple):
    """Where a record begins, and how many bytes its body has."""

    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + -(-(HEADER_BYTES + self.length) // BLOCK) * BLOCK


class BodyKey(NamedTuple):
    """Whose body it is; part of its header."""

    client_id: int
    round: int
    sha256: bytes


class DamagedBodyError(sqlite3.DatabaseError):
    """A body is not where its row says."""


class BodyLog:
    """Owns the file and the knowledge of which parts of it are free.

    What is appended counts from `commit` on, and what is released is free from then on; `rollback` undoes both. The
    file is made by the first append. One thread owns the log; a backup reads the file from another process, see
    `reading`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._end = 0
        """Of the last record in use."""
        self._free: list[tuple[int, int]] = []
        """Free ranges before the end, as start and end, in ascending order and never adjacent."""
        self._appended: list[Place] = []
        self._released: list[Place] = []
        self._unused: list[Place] = []
        """Released and committed; free as soon as no backup is reading the file."""
        self._dirty = False

    # --- start and end ---

    def restore(self, bodies: Iterable[tuple[BodyKey, Place]]) -> None:
        """Takes over the bodies that committed rows name; the rest of the file is free.

        Raises:
            DamagedBodyError: a body is missing, or another one is in its place.
        """
        self._free, self._end = [], 0
        for key, place in sorted(bodies, key=lambda body: body[1]):
            if place.start < self._end:
                raise _damaged(self._path, key)
            check_header(self._open(), self._path, key, place)
            if place.start > self._end:
                self._free.append((self._end, place.start))
            self._end = place.end

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self, *, create: bool = False) -> int:
        if self._fd is None:
            try:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)
            except FileNotFoundError:
                raise sqlite3.DatabaseError(f"{self._path.name} is missing") from None
            if create:
                fsync_path(self._path.parent)  # or a power failure could leave rows without the file they name
        return self._fd

    # --- records ---

    def append(self, key: BodyKey, body: bytes) -> Place:
        """Writes a body to free space; on the disk after `sync`."""
        place = self._allocate(len(body))
        self._appended.append(place)
        header = _header(key, len(body))
        padding = bytes(place.end - place.start - len(header) - len(body))
        try:
            _write_all(self._open(create=True), (header, body, padding), place.start)
        except OSError as error:
            self._appended.pop()
            self._add_free(place.start, place.end)
            raise _storage_error(error) from error
        self._dirty = True
        fault_point("server.body.written")
        return place

    def read(self, key: BodyKey, place: Place, limit: int | None = None) -> bytes:
        """The body of a record, or the first `limit` bytes of it."""
        return read_body(self._open(), self._path, key, place, limit)

    def release(self, place: Place) -> None:
        """Marks a record as free once the transaction is committed."""
        self._released.append(place)

    # --- transactions ---

    def mark(self) -> Mark:
        return len(self._appended), len(self._released)

    def sync(self) -> None:
        """Returns once everything that was appended is on the disk; to be called before the rows are committed."""
        if not self._dirty:
            return
        try:
            if self._path.stat().st_ino != os.fstat(self._open()).st_ino:
                raise sqlite3.OperationalError(f"{self._path.name} is another file than at the start")
            os.fdatasync(self._open())
        except OSError as error:
            raise _storage_error(error) from error
        self._dirty = False
        fault_point("server.body.synced")

    def commit(self) -> None:
        self._unused += self._released
        self._released.clear()
        self._appended.clear()
        if self._unused and not is_being_read(self._open()):
            for place in self._unused:
                self._add_free(place.start, place.end)
            self._unused.clear()

    def rollback(self, mark: Mark) -> None:
        appended, released = mark
        for place in self._appended[appended:]:
            self._add_free(place.start, place.end)
        del self._appended[appended:]
        del self._released[released:]

    # --- space ---

    def trim(self) -> None:
        """Gives a long free end of the file back to the disk."""
        if self._fd is None or self._appended:
            return
        size = os.fstat(self._fd).st_size
        if size - self._end >= max(_TRIM_BYTES, size // 2):
            os.ftruncate(self._fd, self._end)

    def _allocate(self, length: int) -> Place:
        needed = Place(0, length).end
        for index, (start, end) in enumerate(self._free):
            if end - start >= needed:
                if end - start == needed:
                    del self._free[index]
                else:
                    self._free[index] = (start + needed, end)
                return Place(start, length)
        place = Place(self._end, length)
        self._end = place.end
        return place

    def _add_free(self, start: int, end: int) -> None:
        index = bisect.bisect(self._free, (start, end))
        if index < len(self._free) and self._free[index][0] == end:
            end = self._free.pop(index)[1]
        if index and self._free[index - 1][1] == start:
            index -= 1
            start = self._free.pop(index)[0]
        if end == self._end:
            self._end = start
        else:
            self._free.insert(index, (start, end))


def check_header(fd: int, path: Path, key: BodyKey, place: Place) -> None:
    """Raises DamagedBodyError unless the body of this key is in this place."""
    if _pread(fd, HEADER_BYTES, place.start) != _header(key, place.length):
        raise _damaged(path, key)


def read_body(fd: int, path: Path, key: BodyKey, place: Place, limit: int | None = None) -> bytes:
    """The body in a place. A process other than the server has to hold `reading` since before it has read the row."""
    check_header(fd, path, key, place)
    wanted = place.length if limit is None else min(limit, place.length)
    body = _pread(fd, wanted, place.start + HEADER_BYTES)
    if len(body) != wanted:
        raise _damaged(path, key)
    return body


@contextmanager
def reading(path: Path) -> Iterator[int | None]:
    """The open file, none of whose bodies is overwritten meanwhile; None if there is no file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        yield fd
    finally:
        os.close(fd)


def is_being_read(fd: int) -> bool:
    """Whether another process is `reading` the file."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def _header(key: BodyKey, length: int) -> bytes:
    fields = _HEADER.pack(_MAGIC, key.client_id, key.round, length, key.sha256)
    return fields + _CHECKSUM.pack(zlib.crc32(fields))


def _damaged(path: Path, key: BodyKey) -> DamagedBodyError:
    return DamagedBodyError(
        f"{path.name} does not hold the upload of client {key.client_id} to round {key.round + 1}, "
        "which the database has; the two files belong together"
    )


def _storage_error(error: OSError) -> sqlite3.OperationalError:
    """In SQLite's words, since one cause should have one name whichever file meets it first."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return sqlite3.OperationalError("database or disk is full")
    return sqlite3.OperationalError("disk I/O error")


def _pread(fd: int, length: int, offset: int) -> bytes:
    try:
        return os.pread(fd, length, offset)
    except OSError as error:
        raise _storage_error(error) from error


def _write_all(fd: int, pieces: tuple[bytes, ...], offset: int) -> None:
    total = sum(map(len, pieces))
    written = os.pwritev(fd, pieces, offset)
    if written < total:  # a disk that is nearly full, or a limit of the system
        rest = memoryview(b"".join(pieces))
        while written < total:
            written += os.pwrite(fd, rest[written:], offset + written)
