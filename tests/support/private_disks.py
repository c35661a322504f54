"""File systems for one test: a small one that can be filled, and a read-only one.

They are mounted in a mount namespace that a sleeping process holds: no other process sees them, and they are unmounted
when it ends.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


def _may_mount() -> bool:
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0
    except OSError:
        return False


needs_mounts = pytest.mark.skipif(not _may_mount(), reason="mounting needs rights this process does not have")


class PrivateDisk:
    """A directory that is a file system of its own for commands with the prefix `words`."""

    def __init__(self, directory: Path, holder: int) -> None:
        self.words = ("nsenter", "-t", str(holder), "-m")
        self.seen = Path(f"/proc/{holder}/root{directory.resolve()}")
        """The path of the same directory outside the mount namespace."""

    @property
    def _ballast(self) -> Path:
        return self.seen / "ballast"

    def fill(self) -> None:
        """Writes until no byte is free."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                with suppress(OSError):
                    while file.write(bytes(size)) == size:
                        pass

    def make_room(self) -> None:
        self._ballast.unlink()


@contextmanager
def small_disk(directory: Path, megabytes: int) -> Iterator[PrivateDisk]:
    """An empty file system of this size, mounted at the directory."""
    with _mounted(directory, f"mount -t tmpfs -o size={megabytes}m tmpfs {_quoted(directory)}") as disk:
        yield disk


@contextmanager
def read_only_disk(directory: Path) -> Iterator[PrivateDisk]:
    """The directory with its files, mounted read-only."""
    place = _quoted(directory)
    with _mounted(directory, f"mount --bind {place} {place} && mount -o remount,ro,bind {place}") as disk:
        yield disk


@contextmanager
def _mounted(directory: Path, mount: str) -> Iterator[PrivateDisk]:
    directory.mkdir(parents=True, exist_ok=True)
    holder = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", f"{mount} && echo mounted && exec sleep 600"], stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"mounted\n"
        yield PrivateDisk(directory, holder.pid)
    finally:
        holder.kill()
        holder.communicate()


def _quoted(directory: Path) -> str:
    return shlex.quote(str(directory.resolve()))
