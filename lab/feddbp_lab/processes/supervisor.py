"""Child processes that end with their launcher: each runs under a guard, is watched, and is stopped as a group."""

from __future__ import annotations

import asyncio
import ctypes
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
    """A started command; its output is appended to its log."""

    name: str
    log: Path
    pid: int
    """Of its guard, which is also the id of the process group."""
    exited: asyncio.Future[int]
    """Its exit code; 128 plus the signal's number if a signal ended it, as in a shell."""
    core_seconds: asyncio.Future[float]
    """CPU time of the command and what it started, set with `exited`; less if the command was killed with SIGKILL."""

    @property
    def running(self) -> bool:
        return not self.exited.done()

    def last_lines(self, count: int) -> list[str]:
        with suppress(FileNotFoundError), self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-count:]
        return []


class ProcessSupervisor:
    """Starts commands; leaving the context stops them all, with every process they started themselves."""

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

    @property
    def core_seconds(self) -> float:
        """CPU time of all commands that have ended."""
        return sum(child.core_seconds.result() for child in self._children if child.core_seconds.done())

    def start(
        self, name: str, command: Sequence[str], log: Path, *, environment: Mapping[str, str] | None = None
    ) -> ChildProcess:
        """Starts a command. Not a coroutine, so that no cancellation can lose a process that has just started."""
        loop = asyncio.get_running_loop()
        _keep_exit_codes()
        log.parent.mkdir(parents=True, exist_ok=True)
        process, guard_pipe = _start_guarded(command, log, environment)
        child = ChildProcess(
            name=name, log=log, pid=process.pid, exited=loop.create_future(), core_seconds=loop.create_future()
        )
        self._children.append(child)
        # a thread each: the event loop's pool is small, and a federation may have many processes
        threading.Thread(target=_wait_for_exit, args=(process, guard_pipe, child, loop), name=name, daemon=True).start()
        return child

    async def stop(self) -> None:
        """Sends SIGTERM to all, and SIGKILL to those still running after the grace or when this call is cancelled."""
        running = self.running
        if not running:
            return
        _signal_groups(running, signal.SIGTERM)
        try:
            await asyncio.wait([child.exited for child in running], timeout=self._grace.total_seconds())
        finally:
            _signal_groups(self.running, signal.SIGKILL)
        await asyncio.wait([child.exited for child in running])


def _keep_exit_codes() -> None:
    """Lets this process wait for its children where it, or its parent, ignores SIGCHLD, as Ray's processes may do.

    By the C library: Python's own function is for the main thread alone.
    """
    set_handler = ctypes.CDLL(None).signal
    set_handler.argtypes, set_handler.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    before = set_handler(signal.SIGCHLD, None)
    if before not in (None, int(signal.SIG_IGN)):
        set_handler(signal.SIGCHLD, before)


def _start_guarded(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None
) -> tuple[subprocess.Popen[bytes], int]:
    """Returns the guard's process, and this end of its pipe."""
    read_end, guard_pipe = os.pipe()
    try:
        with log.open("ab") as output:
            # -I and -S: the guard needs nothing from the environment or site-packages, and starts faster without them.
            # A session of its own: Ctrl-C reaches the launcher alone, which then stops all processes in order.
            process = subprocess.Popen(  # noqa: S603 - our own commands
                (sys.executable, "-I", "-S", str(_GUARD), *command),
                stdin=read_end,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )
    except BaseException:
        os.close(guard_pipe)
        raise
    finally:
        os.close(read_end)
    return process, guard_pipe


def _wait_for_exit(
    process: subprocess.Popen[bytes], guard_pipe: int, child: ChildProcess, loop: asyncio.AbstractEventLoop
) -> None:
    """Waits for a guard, ends what is left of its process group, and sets the exit code."""
    if hasattr(os, "waitid"):
        # WNOWAIT: until `_reap` the kernel cannot reuse the id, so the signal reaches this group and no other
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        _signal_groups([child], signal.SIGKILL)
        code, core_seconds = _reap(process)
    else:  # macOS: the id could only be reused if the system went through all ids in this instant
        code, core_seconds = _reap(process)
        _signal_groups([child], signal.SIGKILL)
    os.close(guard_pipe)
    with suppress(RuntimeError):  # the loop is closed, and nothing waits for the code
        loop.call_soon_threadsafe(_set_results, child, code if code >= 0 else 128 - code, core_seconds)


def _reap(process: subprocess.Popen[bytes]) -> tuple[int, float]:
    """The exit code of a guard, and the CPU time of it and of everything it has waited for."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime


def _set_results(child: ChildProcess, code: int, core_seconds: float) -> None:
    if not child.exited.done():
        child.core_seconds.set_result(core_seconds)
        child.exited.set_result(code)


def _signal_groups(children: list[ChildProcess], number: int) -> None:
    for child in children:
        # macOS answers EPERM if the group consists of a zombie
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
