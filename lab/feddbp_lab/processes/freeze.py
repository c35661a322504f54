"""Stops process groups for an instant, so that their files can be copied as they are at one moment.

To the copy it is as if all processes had been killed at that moment, which every server and client survives. The guard
of each group keeps running: if this process dies meanwhile, the guard wakes the group and ends it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from feddbp_common.errors import FedDBPError

_PATIENCE_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.002
_STOPPED: Final = frozenset("TtZX")


class FreezeError(FedDBPError):
    """The processes did not stop in time, or this system has no /proc."""


@contextmanager
def frozen(groups: Collection[int]) -> Iterator[None]:
    """Stops all processes of the groups but their leaders, and wakes them at the end of the block."""
    stopped: set[int] = set()
    try:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            members = _members(groups)
            for pid in members - stopped:
                _signal(pid, signal.SIGSTOP)
            stopped |= members
            if all(map(_is_stopped, stopped)) and _members(groups) <= stopped:
                break
            if time.monotonic() > deadline:
                raise FreezeError("the processes of the cell did not stop for a copy of their files")
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        for pid in stopped:
            _signal(pid, signal.SIGCONT)


def _members(groups: Collection[int]) -> set[int]:
    """Ids of the processes in the groups, without the leaders."""
    found = set()
    try:
        entries = list(Path("/proc").iterdir())
    except FileNotFoundError:
        raise FreezeError("files of running processes can only be copied on Linux") from None
    for entry in entries:
        if entry.name.isdecimal() and int(entry.name) not in groups and _group_of(entry) in groups:
            found.add(int(entry.name))
    return found


def _group_of(process: Path) -> int | None:
    fields = _fields(process / "stat")
    return int(fields[2]) if fields else None


def _is_stopped(pid: int) -> bool:
    """Whether every thread has stopped: one in a system call finishes it first."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            fields = _fields(thread / "stat")
            if fields and fields[0] not in _STOPPED:
                return False
    return True


def _fields(stat: Path) -> list[str]:
    """State, parent, group and so on; the name before them may hold anything. Empty if the process has ended."""
    try:
        return stat.read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
