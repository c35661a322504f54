"""The server's process: open files, modes of new files, malloc, BLAS threads, garbage collection, memory in use."""

from __future__ import annotations

import ctypes
import gc
import glob
import os
import resource
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from feddbp_common.artifacts import (
    AUDIT_NAME,
    CLIENTS_NAME,
    DATABASE_NAME,
    ENDPOINT_NAME,
    METRICS_NAME,
    PROTOTYPES_DIR_NAME,
    ROUNDS_NAME,
    SERVER_LOCK_NAME,
    SUMMARY_NAME,
)
from feddbp_common.cpu_cores import limit_blas_threads
from feddbp_common.errors import ConfigurationError
from feddbp_common.given_paths import is_there

_M_ARENA_MAX: Final = -8  # of glibc's malloc.h
_M_MMAP_THRESHOLD: Final = -3
_M_TRIM_THRESHOLD: Final = -1
_ARENAS: Final = 2
_MMAP_BYTES: Final = 8 << 20
_KEPT_BYTES: Final = 64 << 20
_GC_THRESHOLDS: Final = (10_000, 20, 20)
_OTHER_FILES: Final = 64
"""Open files besides connections: the store, logs, gRPC's own."""
_OWN_FILES: Final = (
    f"{DATABASE_NAME}*",
    SERVER_LOCK_NAME,
    ENDPOINT_NAME,
    METRICS_NAME,
    SUMMARY_NAME,
    ROUNDS_NAME,
    CLIENTS_NAME,
    f"{AUDIT_NAME}*",
    f"{PROTOTYPES_DIR_NAME}/*.npz",
)
"""Of a server in its state directory, which may be a directory that has other files, too."""


def prepare_process() -> None:
    """To be called before the first thread starts: memory it allocates would stay in its arena."""
    _keep_files_private()
    _allow_many_connections()
    _configure_malloc()
    limit_blas_threads()


def _keep_files_private() -> None:
    """New files are readable by the server's user alone: uploads and the audit log are nobody else's."""
    os.umask(0o077)


def tighten(directory: Path) -> None:
    """Takes the rights of other users from a server's files in its state directory: an earlier version left them.

    To be called once the store is open: only then is the directory known to be this server's.
    """
    _make_private(_own_files(directory))


class NewFiles:
    """What a start makes in a state directory without a run, to be removed if the server never listens."""

    def __init__(self, directory: Path) -> None:
        """To be called before the first file is made."""
        self._directory = directory
        self._before = set(_own_files(directory))
        self._has_run = directory / DATABASE_NAME in self._before
        self._made_directories = [place for place in (directory, *directory.parents) if not is_there(place)]

    def remove(self) -> None:
        """To be called while the directory is locked: afterwards it may be another server's."""
        if self._has_run:  # the log of its database is new, too, and part of it
            return
        with suppress(OSError):  # what is left is of no harm: a run that nobody joined
            for path in set(_own_files(self._directory)) - self._before:
                path.unlink()
            for place in self._made_directories:
                place.rmdir()


def _own_files(directory: Path) -> Iterator[Path]:
    for pattern in _OWN_FILES:
        yield from directory.glob(pattern)


def tighten_log_file(log_file: Path) -> None:
    """Takes the rights of other users from a log file and the renamed ones: an earlier version left them."""
    _make_private([log_file])
    _make_private(
        path
        for path in log_file.parent.glob(f"{glob.escape(log_file.name)}.*")
        if path.name.removeprefix(f"{log_file.name}.").isdecimal()
    )


def _make_private(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(OSError):  # another user's file; the store says so if it is one of its own
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode) and mode & 0o077:
                path.chmod(stat.S_IMODE(mode) & 0o700)


def _allow_many_connections() -> None:
    """Raises the limit on open files: every client is one, and the usual limit is about a thousand."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def check_open_files(clients: int) -> None:
    """Raises ConfigurationError if the clients cannot all be connected: each connection is an open file."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < clients + _OTHER_FILES:
        raise ConfigurationError(
            f"this process may open {limit} files, but {clients} clients need one each and the server some more; "
            f"raise the limit (`ulimit -n {clients + _OTHER_FILES}`, or LimitNOFILE= of a service)"
        )


def settle_heap() -> None:
    """To be called once the server listens: what was made by then stays, and need not be looked at again and again.

    Sessions and open calls of many clients are a million objects, which a full collection takes a second for. With
    Python's own thresholds it did so several times a round; most cycles are garbage while they are young.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def resident_bytes() -> int:
    """Resident memory of this process; 0 where the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * resource.getpagesize()
    return 0


def _configure_malloc() -> None:
    """Limits malloc arenas, and keeps memory between the uploads of a round.

    With an arena for every gRPC thread, each would keep its peak memory of a round. And bodies of uploads would be
    taken from the system and given back one by one, which clears every page of them each time.
    """
    with suppress(OSError, AttributeError, TypeError):  # other C libraries have no such settings
        malloc = ctypes.CDLL(None)
        malloc.mallopt(_M_ARENA_MAX, _ARENAS)
        malloc.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        malloc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
