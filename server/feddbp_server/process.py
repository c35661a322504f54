"""What the server asks of the operating system before it starts: files for its connections, memory without hoarding."""

from __future__ import annotations

import ctypes
import resource
from contextlib import suppress
from typing import Final

_M_ARENA_MAX: Final = -8  # of glibc's malloc.h
_ARENAS: Final = 2


def prepare_process() -> None:
    """Before the first thread: what it allocates stays where it was put."""
    _allow_many_connections()
    _share_arenas()


def _allow_many_connections() -> None:
    """Every client is an open file; a shell's usual limit ends below a thousand of them."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _share_arenas() -> None:
    """With an arena for every thread of gRPC, each keeps its share of what a round of uploads took at its height."""
    with suppress(OSError, AttributeError, TypeError):  # another C library has no arenas
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)
