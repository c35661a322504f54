"""Files of one JSON object a line: appended to while a run goes on, and read with damaged lines counted."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Generic, TypeVar

from feddbp_common.atomic_files import append_line

log = logging.getLogger("feddbp.server")

T = TypeVar("T")
MALFORMED: Final = (LookupError, TypeError, ValueError, AttributeError)
"""Errors from parsing a line in which something is missing or of the wrong type."""


class WriteFailures:
    """Logs the first of several writes that fail and, once they work again, how many did."""

    def __init__(self, name: str, *, lost: str) -> None:
        self._name = name
        self._lost = lost
        """The word for what a failed write loses, in the plural."""
        self._count = 0

    def add(self, error: OSError) -> None:
        if not self._count:
            log.error("%s cannot be written: %s; %s will be missing", self._name, error.strerror or error, self._lost)
        self._count += 1

    def end(self) -> None:
        """To be called after every write that succeeds."""
        if self._count:
            log.warning("%s can be written again; missing %s: %d", self._name, self._lost, self._count)
            self._count = 0


class LineFile:
    """A file to which lines are appended; one that cannot be written is counted and logged, and fails no call.

    It is opened by the first line, and again after a failure.
    """

    def __init__(self, path: Path, name: str = "") -> None:
        self.path = path
        self._file: io.FileIO | None = None
        self._failures = WriteFailures(name or path.name, lost="lines")

    def open(self) -> io.FileIO:
        """Raises OSError."""
        if self._file is None:
            self._file = self.path.open("ab", buffering=0)
        return self._file

    def append(self, line: str) -> int:
        """Returns the size of the file; 0 if the line could not be written."""
        try:
            file = self.open()
            append_line(file, line)
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


@dataclass(frozen=True)
class JsonLines(Generic[T]):
    """The lines of a file that could be read, and how many could not."""

    entries: list[T]
    damaged: int = 0

    def note(self, name: str) -> str:
        """For people, about a file in which lines are damaged."""
        lines = "line was" if self.damaged == 1 else "lines were"
        return f"{name}: {self.damaged} damaged {lines} left out"

    @classmethod
    def read(cls, path: Path, parse: Callable[[dict[str, Any]], T], *, last_bytes: int | None = None) -> JsonLines[T]:
        """Reads a file, or the whole lines in its last bytes; a missing one is empty. Raises OSError.

        `parse` raises one of `MALFORMED` for a damaged line. The last line is passed over if it has no end: it is being
        written, or its writer was killed.
        """
        entries, damaged = [], 0
        with suppress(FileNotFoundError), path.open("rb") as file:
            for line in _whole_lines(file, last_bytes):
                try:
                    entries.append(parse(_object(line)))
                except MALFORMED:
                    damaged += 1
        return cls(entries, damaged)


def _whole_lines(file: BinaryIO, last_bytes: int | None) -> Iterator[bytes]:
    begin = 0 if last_bytes is None else file.seek(0, io.SEEK_END) - last_bytes
    if begin > 0:
        file.seek(begin - 1)
        file.readline()  # the rest of a line, or only its end
    else:
        file.seek(0)
    return (line for line in file if line.endswith(b"\n"))


def _object(line: bytes) -> dict[str, Any]:
    parsed = json.loads(line)
    if not isinstance(parsed, dict):
        raise TypeError("not an object")
    return parsed
