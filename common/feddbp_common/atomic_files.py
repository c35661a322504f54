"""Files that are either the old one or the new one, and lines that are there or not, never a half."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Durable once it returns."""
    partial = path.with_name(path.name + ".part")
    partial.write_text(text, encoding="utf-8")
    settle(partial, path)


def replace_lines(path: Path, lines: Iterable[str]) -> None:
    """The same, for more lines than should be in memory at once."""
    partial = path.with_name(path.name + ".part")
    with partial.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    settle(partial, path)


def settle(partial: Path, path: Path) -> None:
    """Gives a finished file its final name, its bytes to the disk first, for the day of a power cut."""
    sync(partial)
    partial.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Waits until a file's bytes, or a directory's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
