"""Stopping process groups for a copy of their files."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import processes_naming, wait_until

from feddbp_lab.processes.freeze import frozen
from feddbp_lab.processes.supervisor import ProcessSupervisor

COUNT = "import sys, time\nwhile True:\n    open(sys.argv[1], 'a').write('x'); time.sleep(0.001)"


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


async def test_files_do_not_change_while_their_processes_are_frozen(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    async with ProcessSupervisor() as supervisor:
        child = supervisor.start("counter", (sys.executable, "-c", COUNT, str(counter)), tmp_path / "log")
        await asyncio.to_thread(wait_until, lambda: size(counter), "counting")
        with frozen([child.pid]):
            before = size(counter)
            await asyncio.sleep(0.05)
            assert size(counter) == before
        await asyncio.to_thread(wait_until, lambda: size(counter) > before, "counting again")


LAUNCHER = """
import asyncio, os, sys
from pathlib import Path
from feddbp_lab.processes.freeze import frozen
from feddbp_lab.processes.supervisor import ProcessSupervisor

async def main(path, log):
    async with ProcessSupervisor() as supervisor:
        child = supervisor.start("counter", (sys.executable, "-c", {count!r}, path), Path(log))
        while not Path(path).exists():
            await asyncio.sleep(0.01)
        with frozen([child.pid]):
            print(child.pid, flush=True)
            await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("killed", ["launcher", "guard"])
def test_a_frozen_process_ends_with_its_launcher_and_with_its_guard(tmp_path: Path, killed: str) -> None:
    counter = tmp_path / "counter"
    code = LAUNCHER.format(count=COUNT)
    with subprocess.Popen(
        [sys.executable, "-c", code, str(counter), str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        guard = int(launcher.stdout.readline())
        os.kill(launcher.pid if killed == "launcher" else guard, signal.SIGKILL)
        wait_until(lambda: len(processes_naming(counter)) <= (killed == "guard"), "the end of the frozen process")
        launcher.kill()
    wait_until(lambda: not processes_naming(counter), "the end of all processes")
