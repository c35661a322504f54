"""Exclusive locks between processes, on a file, by flock(2).

The kernel releases a lock when its process ends, however it ends, so a crash leaves nothing to clean up. A lock file is
not removed on release. Where its holder removes it with all else in its directory, a process that was waiting for the
removed file begins again with a new one of that name: else it and the next process would both have the lock.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from feddbp_common.errors import FedDBPError

_DEFAULT_MODE = 0o666
"""As of files that `open` creates; the umask applies."""
_QUERY_SECONDS = 0.02
"""Longer than the shared lock of `is_locked` is held."""


class LockHeldError(FedDBPError):
    """Another process, or another `FileLock` of this one, holds the lock."""

    def __init__(self, path: Path, owner: str) -> None:
        super().__init__(f"{path} is locked by process {owner or 'unknown'}")
        self.owner = owner
        """The id of the holding process, if it is of an early version, which wrote it into the file; else empty."""


class FileLock:
    """A held lock; released by `release`, at the end of a `with` block, or with the process.

    Programs started by this process do not inherit it. A child of a fork without exec would; this project has none.
    """

    def __init__(self, path: Path, *, wait: bool = False, shared: bool = False, mode: int = _DEFAULT_MODE) -> None:
        """Acquires the lock, creating its file if there is none. Shared locks only exclude those that are not.

        Raises LockHeldError if it is held and `wait` is false, and OSError if the file cannot be opened for writing or
        is a symbolic link, whose target would be emptied.
        """
        self._descriptor = _open_locked(path, wait=wait, shared=shared, mode=mode)

    def release(self) -> None:
        """Further calls do nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            _truncate(descriptor)
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _open_locked(path: Path, *, wait: bool, shared: bool, mode: int) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, mode)
        try:
            _acquire(descriptor, wait=wait, shared=shared)
        except BlockingIOError:
            owner = os.read(descriptor, 64).decode(errors="replace").strip()
            os.close(descriptor)
            raise LockHeldError(path, owner) from None
        except BaseException:
            os.close(descriptor)
            raise
        if os.fstat(descriptor).st_nlink:
            _truncate(descriptor)  # a process that was killed leaves its id
            return descriptor
        os.close(descriptor)  # removed by its holder meanwhile


def _acquire(descriptor: int, *, wait: bool, shared: bool) -> None:
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    if wait:
        fcntl.flock(descriptor, kind)
        return
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(_QUERY_SECONDS)  # it may have been a query
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)


def _truncate(descriptor: int) -> None:
    """Removes the id of an owner that no longer holds the lock; it only serves messages, so errors are ignored."""
    with suppress(OSError):
        os.ftruncate(descriptor, 0)


def is_locked(path: Path) -> bool:
    """Whether a `FileLock` on this file is held now, by any process; one that is shared is not noticed.

    Takes a shared lock for an instant: queries do not see one another, and none creates the file or needs write access.
    """
    return _is_refused(path, fcntl.LOCK_SH)


def is_locked_or_shared(path: Path) -> bool:
    """Whether a `FileLock` on this file is held now, shared or not, or queried in this instant."""
    return _is_refused(path, fcntl.LOCK_EX)


def _is_refused(path: Path, kind: int) -> bool:
    with suppress(FileNotFoundError), path.open("rb") as file:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
