"""Files that are either the old one or the new one, and lines that are there or not, never a half."""

from __future__ import annotations

import errno
import io
import os
from contextlib import suppress
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Durable once it returns."""
    partial = path.with_name(path.name + ".part")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        # else the name may outlive a power cut and the content not
        os.fsync(file.fileno())
    partial.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


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
