"""Writes to files: one is replaced as a whole, durably, and a line is appended as a whole or not at all."""

from __future__ import annotations

import errno
import io
import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Replaces a file atomically; the new content is on disk when this returns."""
    partial = path.with_name(path.name + ".part")
    partial.write_text(text, encoding="utf-8")
    commit_file(partial, path)


def replace_lines(path: Path, lines: Iterable[str]) -> None:
    """Replaces a file atomically by lines that need not fit into memory together."""
    partial = path.with_name(path.name + ".part")
    with partial.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    commit_file(partial, path)


def append_line(file: io.FileIO, line: str) -> None:
    """Adds a line to an unbuffered file, or nothing at all where there is no room for all of it."""
    end = file.seek(0, os.SEEK_END)
    encoded = f"{line}\n".encode()
    try:
        if file.write(encoded) != len(encoded):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        with suppress(OSError):
            file.truncate(end)
        raise


def replace_private(path: Path, content: bytes) -> None:
    """Replaces a file atomically by one that only its owner can read."""
    partial = path.with_name(path.name + ".part")
    partial.unlink(missing_ok=True)  # one that a killed process has left keeps its mode
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    commit_file(partial, path)


class WriteFailures:
    """Logs the first of several writes that fail and, once they work again, how many did."""

    def __init__(self, log: logging.Logger, name: str, *, lost: str) -> None:
        self._log = log
        self._name = name
        self._lost = lost
        """The word for what a failed write loses, in the plural."""
        self._count = 0

    def add(self, error: OSError) -> None:
        if not self._count:
            self._log.error(
                "%s cannot be written: %s; %s will be missing", self._name, error.strerror or error, self._lost
            )
        self._count += 1

    def end(self) -> None:
        """To be called after every write that succeeds."""
        if self._count:
            self._log.warning("%s can be written again; missing %s: %d", self._name, self._lost, self._count)
            self._count = 0


class LineFile:
    """A file to which lines are appended; one that cannot be written is counted and logged, and fails no call.

    It is opened by the first line, and again after a failure or if another file, or none, is in its place.
    """

    def __init__(self, path: Path, log: logging.Logger, *, name: str = "") -> None:
        self.path = path
        self._file: io.FileIO | None = None
        self._is_torn = False
        """The last line has no end, as after a power failure; another one would be lost with it."""
        self._failures = WriteFailures(log, name or path.name, lost="lines")

    def open(self) -> io.FileIO:
        """Raises OSError."""
        if self._file is not None and not self._is_in_place(self._file):
            self.close()
        if self._file is None:
            self._file = self.path.open("ab+", buffering=0)
            self._is_torn = _is_torn(self._file)
        return self._file

    def _is_in_place(self, file: io.FileIO) -> bool:
        try:
            return os.path.samestat(os.fstat(file.fileno()), self.path.stat())
        except FileNotFoundError:
            return False

    def append(self, line: str) -> int:
        """Returns the size of the file; 0 if the line could not be written."""
        try:
            file = self.open()
            append_line(file, f"\n{line}" if self._is_torn else line)
            self._is_torn = False
            size = file.tell()
        except OSError as error:
            self.close()
            self._failures.add(error)
            return 0
        self._failures.end()
        return size

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def remove(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)


def _is_torn(file: io.FileIO) -> bool:
    size = os.fstat(file.fileno()).st_size
    return size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"


def commit_file(partial: Path, path: Path) -> None:
    """Renames a complete file to its final name, with the fsyncs that make this survive a power failure."""
    fsync_path(partial)
    partial.replace(path)
    fsync_path(path.parent)


def fsync_path(path: Path) -> None:
    """Waits until the content of a file, or the entries of a directory, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
