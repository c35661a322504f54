"""Child processes end with their launcher: when stopped, when they ignore SIGTERM, and when the launcher is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from feddbp_lab.processes.supervisor import ChildProcess, ProcessSupervisor

IDLE = "import time; time.sleep(60)"
IGNORES_SIGTERM = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: pathlib.Path(sys.argv[1] + ".asked").write_text("to stop"))
pathlib.Path(sys.argv[1]).write_text("ready")
time.sleep(60)
"""
PARENT = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1] + ".child"])
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
time.sleep(float(sys.argv[3]))
"""
LAUNCHER = """
import asyncio, pathlib, sys
from feddbp_lab.processes.supervisor import ProcessSupervisor

async def main():
    async with ProcessSupervisor() as supervisor:
        here = pathlib.Path(sys.argv[1])
        child = supervisor.start("child", [sys.executable, "-c", sys.argv[2], str(here / "pid"), sys.argv[3], "60"], here / "log")
        await child.exited

asyncio.run(main())
"""  # noqa: E501


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_for(condition: Callable[[], object], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def written(path: Path) -> str:
    for _ in range(750):
        if text := text_of(path):
            return text
        await asyncio.sleep(0.02)
    raise AssertionError(f"{path} was not written")


async def test_exit_code_and_output_of_a_command_are_recorded(tmp_path: Path) -> None:
    async with ProcessSupervisor() as supervisor:
        child = supervisor.start(
            "printer", python("print('first'); print('last'); raise SystemExit(7)"), tmp_path / "log"
        )
        assert await child.exited == 7
    assert child.last_lines(1) == ["last"]
    assert child.last_lines(5) == ["first", "last"]


async def test_the_cpu_time_of_a_command_and_of_those_it_waited_for_is_known(tmp_path: Path) -> None:
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"
    async with ProcessSupervisor() as supervisor:
        children = [supervisor.start("busy", python(code), tmp_path / "log") for code in (busy, nested)]
        for child in children:
            await child.exited
            assert child.core_seconds.result() >= 0.3
    assert supervisor.core_seconds == sum(child.core_seconds.result() for child in children)


async def test_a_command_killed_by_a_signal_has_the_exit_code_of_a_shell(tmp_path: Path) -> None:
    async with ProcessSupervisor() as supervisor:
        child = supervisor.start("killed", python("import os; os.kill(os.getpid(), 9)"), tmp_path / "log")
        assert await child.exited == 128 + signal.SIGKILL


async def test_a_command_that_cannot_be_started_is_logged(tmp_path: Path) -> None:
    async with ProcessSupervisor() as supervisor:
        child = supervisor.start("missing", ["/no/such/command"], tmp_path / "log")
        assert await child.exited == 127
    assert "cannot start /no/such/command" in child.last_lines(1)[0]


async def test_leaving_the_context_stops_the_children(tmp_path: Path) -> None:
    async with ProcessSupervisor() as supervisor:
        child = supervisor.start("idle", python(IDLE), tmp_path / "log")
        assert supervisor.running == [child]
    assert child.exited.done()
    assert not alive(child.pid)


async def test_a_child_that_ignores_sigterm_is_killed_after_the_grace_period(tmp_path: Path) -> None:
    async with ProcessSupervisor(grace=timedelta(seconds=0.3)) as supervisor:
        child = supervisor.start("ignores-sigterm", python(IGNORES_SIGTERM, tmp_path / "ready"), tmp_path / "log")
        await written(tmp_path / "ready")
    assert child.exited.result() == 128 + signal.SIGKILL
    assert not alive(child.pid)


async def test_grandchildren_that_ignore_sigterm_are_killed_too(tmp_path: Path) -> None:
    async with ProcessSupervisor(grace=timedelta(seconds=0.3)) as supervisor:
        supervisor.start("parent", python(PARENT, tmp_path / "pid", IGNORES_SIGTERM, 60), tmp_path / "log")
        grandchild = int(await written(tmp_path / "pid"))
        await written(tmp_path / "pid.child")
        assert alive(grandchild)
    wait_for(lambda: not alive(grandchild))


async def test_a_grandchild_is_killed_when_the_child_exits(tmp_path: Path) -> None:
    async with ProcessSupervisor() as supervisor:
        child = supervisor.start("parent", python(PARENT, tmp_path / "pid", IGNORES_SIGTERM, 0), tmp_path / "log")
        assert await child.exited == 0
        grandchild = int(await written(tmp_path / "pid"))
        wait_for(lambda: not alive(grandchild))


async def test_cancelling_a_stop_kills_without_waiting_for_the_grace_period(tmp_path: Path) -> None:
    started: list[ChildProcess] = []

    async def session() -> None:
        async with ProcessSupervisor(grace=timedelta(minutes=5)) as supervisor:
            started.append(
                supervisor.start("ignores-sigterm", python(IGNORES_SIGTERM, tmp_path / "ready"), tmp_path / "log")
            )
            await asyncio.Event().wait()

    task = asyncio.create_task(session())
    await written(tmp_path / "ready")
    task.cancel()
    await written(tmp_path / "ready.asked")
    assert started[0].running
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.wait_for(started[0].exited, 10) == 128 + signal.SIGKILL


async def test_a_command_gets_the_environment_it_is_started_with(tmp_path: Path) -> None:
    async with ProcessSupervisor() as supervisor:
        show = "import os; print(os.environ.get('SEEN'), os.environ.get('HIDDEN'))"
        child = supervisor.start("env", python(show), tmp_path / "log", environment={"SEEN": "yes"})
        await child.exited
    assert child.last_lines(1) == ["yes None"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_outlives_a_killed_launcher(tmp_path: Path, how: signal.Signals) -> None:
    launcher = subprocess.Popen(python(LAUNCHER, tmp_path, PARENT, IDLE))
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    grandchild = int((tmp_path / "pid").read_text())
    group = os.getpgid(grandchild)
    os.kill(launcher.pid, how)
    launcher.wait()
    wait_for(lambda: not alive(grandchild))
    wait_for(lambda: not alive(group))
