"""ChildProcess processes that do not outlive their launcher: started under a guard, watched, and stopped as groups."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from feddbp_lab.processes.guard import GRACE_SECONDS

_GUARD: Final = Path(__file__).with_name("guard.py")
_TAIL_BYTES: Final = 16_384


@dataclass(frozen=True, eq=False, kw_only=True)
class ChildProcess:
    """A started command; its output goes to its log."""

    name: str
    log: Path
    pid: int
    """Of its guard, and so of its process group."""
    ended: asyncio.Future[int]
    """Its exit code; 128 and the signal's number if it was killed, as shells have it."""

    @property
    def running(self) -> bool:
        return not self.ended.done()

    def last_lines(self, count: int) -> list[str]:
        with suppress(FileNotFoundError), self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-count:]
        return []


class ProcessSupervisor:
    """Starts commands; on leaving the context all are stopped, with whatever they started themselves."""

    def __init__(self, *, grace: timedelta = timedelta(seconds=GRACE_SECONDS)) -> None:
        self._grace = grace
        self._children: list[ChildProcess] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def running(self) -> list[ChildProcess]:
        return [child for child in self._children if child.running]

    def start(
        self, name: str, command: Sequence[str], log: Path, *, environment: Mapping[str, str] | None = None
    ) -> ChildProcess:
        """Not a coroutine: there is no moment at which a cancellation could lose a process that has just begun."""
        loop = asyncio.get_running_loop()
        log.parent.mkdir(parents=True, exist_ok=True)
        process, lifeline = _under_guard(command, log, environment)
        child = ChildProcess(name=name, log=log, pid=process.pid, ended=loop.create_future())
        self._children.append(child)
        threading.Thread(target=_await_end, args=(process, lifeline, child, loop), name=name, daemon=True).start()
        return child

    async def stop(self) -> None:
        """SIGTERM to all, SIGKILL to those that are left after the grace, or at once when this is cancelled."""
        running = self.running
        if not running:
            return
        _signal(running, signal.SIGTERM)
        try:
            await asyncio.wait([child.ended for child in running], timeout=self._grace.total_seconds())
        finally:
            _signal(self.running, signal.SIGKILL)
        await asyncio.wait([child.ended for child in running])


def _under_guard(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None
) -> tuple[subprocess.Popen[bytes], int]:
    """The process, and our end of its guard's pipe."""
    held_by_guard, lifeline = os.pipe()
    try:
        with log.open("ab") as output:
            # -I and -S: the guard needs nothing from the environment or site-packages, and starts the faster.
            # A session of its own: Ctrl-C reaches the launcher alone, which then stops everyone in order.
            process = subprocess.Popen(  # noqa: S603 - our own commands
                (sys.executable, "-I", "-S", str(_GUARD), *command),
                stdin=held_by_guard,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )
    except BaseException:
        os.close(lifeline)
        raise
    finally:
        os.close(held_by_guard)
    return process, lifeline


def _await_end(
    process: subprocess.Popen[bytes], lifeline: int, child: ChildProcess, loop: asyncio.AbstractEventLoop
) -> None:
    """In a thread of its own: the loop's pool is small, and a federation may have many processes."""
    if hasattr(os, "waitid"):
        # Not collected yet, so that its id, and the group's, is nobody else's while the rest of the group is ended.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        _signal([child], signal.SIGKILL)
        code = process.wait()
    else:  # macOS: the id could be another's only if the system had gone through all of them in this instant
        code = process.wait()
        _signal([child], signal.SIGKILL)
    os.close(lifeline)
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(_settle, child.ended, code if code >= 0 else 128 - code)


def _settle(ended: asyncio.Future[int], code: int) -> None:
    if not ended.done():
        ended.set_result(code)


def _signal(children: list[ChildProcess], number: int) -> None:
    for child in children:
        # macOS answers EPERM where nothing is left but a zombie
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
