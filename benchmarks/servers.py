"""Runs a server process for benchmarks, in a temporary directory."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from feddbp_common.artifacts import ENDPOINT_NAME


@dataclass(frozen=True)
class RunningServer:
    address: str
    pid: int
    state_dir: Path
    _process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server was started by another process"
        return self._process


@contextmanager
def running_server(*options: object) -> Iterator[RunningServer]:
    with tempfile.TemporaryDirectory() as directory:
        state_dir = Path(directory) / "server"
        with (Path(directory) / "log").open("w+b") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "feddbp_server.cli", "--port", "0", "--state-dir", str(state_dir)]
                + [str(option) for option in options],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                endpoint = _endpoint(state_dir / ENDPOINT_NAME, process, log.name)
                yield RunningServer(f"127.0.0.1:{endpoint['port']}", process.pid, state_dir, process)
            finally:
                process.kill()
                process.wait()


def _endpoint(path: Path, process: subprocess.Popen[bytes], log: str) -> dict[str, int]:
    deadline = time.monotonic() + 30
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the server did not start:\n{Path(log).read_text()}")
        time.sleep(0.01)
    loaded: dict[str, int] = json.loads(path.read_text())
    return loaded


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process so far, to the nanosecond where the kernel says so."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


def peak_bytes(pid: int) -> int:
    """Peak resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {pid} has no peak memory: is it running?")


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
