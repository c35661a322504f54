"""Who works where: locks the kernel frees with their process, however it ended."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

from feddbp_common.errors import ConfigurationError, FedDBPError

_POLL_SECONDS: Final = 0.1


class StillInUseError(FedDBPError):
    """Processes of an earlier runner go on where a cell is to be taken up."""


@contextmanager
def only_runner(path: Path) -> Iterator[None]:
    """Holds the lock of an output directory, or says who does."""
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ConfigurationError(
                f"another runner (process {file.read().strip() or 'unknown'}) is at work in {path.parent}"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Holds the lock; waits for it, as others only take it to see whether it is held."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_held(path: Path) -> bool:
    """Whether another process holds the lock; whoever asks holds it for an instant."""
    try:
        with path.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


async def until_free(paths: Iterable[Path], patience: timedelta) -> None:
    """Waits for processes that are on their way out: the guard of a killed runner gives them time to go in order."""
    deadline = time.monotonic() + patience.total_seconds()
    for path in paths:
        while is_held(path):
            if time.monotonic() >= deadline:
                raise StillInUseError(f"a process of an earlier runner still uses {path.parent}")
            await asyncio.sleep(_POLL_SECONDS)
