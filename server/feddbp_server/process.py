"""What the server settles before it starts: files for its connections, memory without hoarding, threads of numpy."""

from __future__ import annotations

import ctypes
import resource
from contextlib import suppress
from typing import Final

from threadpoolctl import threadpool_limits

_M_ARENA_MAX: Final = -8  # of glibc's malloc.h
_ARENAS: Final = 2


def prepare_process() -> None:
    """Before the first thread: what it allocates stays where it was put."""
    _allow_many_connections()
    _share_arenas()
    _multiply_in_one_thread()


def _allow_many_connections() -> None:
    """Every client is an open file; a shell's usual limit ends below a thousand of them."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _share_arenas() -> None:
    """With an arena for every thread of gRPC, each keeps its share of what a round of uploads took at its height."""
    with suppress(OSError, AttributeError, TypeError):  # another C library has no arenas
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)


def _multiply_in_one_thread() -> None:
    """Some methods train on the server, in steps of small products.

    Shared between threads, each waits for the slowest: beside busy neighbours that takes ten times as long. In one
    thread a result does not depend on the number of cores either.
    """
    threadpool_limits(1, user_api="blas")
