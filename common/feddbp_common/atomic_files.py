"""Durable writes: a file is replaced as a whole, and a line is appended as a whole or not at all."""

from __future__ import annotations

import errno
import io
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
