"""Reads files of one JSON object a line, such as the audit log, and counts the lines that are damaged."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Generic, TypeVar

from feddbp_common.humanize import quantity

T = TypeVar("T")
MALFORMED: Final = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
"""Errors from parsing a line in which something is missing or of the wrong type."""


@dataclass(frozen=True)
class JsonLines(Generic[T]):
    """The lines of a file that could be read, and how many could not."""

    entries: list[T]
    damaged: int = 0

    def note(self, name: str) -> str:
        """For people, about a file in which lines are damaged."""
        was = "was" if self.damaged == 1 else "were"
        return f"{name}: {quantity(self.damaged, 'damaged line')} {was} left out"

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
