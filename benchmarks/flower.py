"""A round of Flower's legacy gRPC with the same bytes, against the bare server and ours.

Flower is installed in an environment of its own, once, below the user's cache directory. Where it cannot be, e.g.
without a package index, this benchmark says so and measures nothing.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import venv
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks.measurement import Measurement
from benchmarks.round import Setting, compare

FLOWER = "flwr==1.41.0"
SETTING = Setting(clients=20, rounds=40)
PROCESS = Path(__file__).with_name("flower_process.py")
QUIET = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0"}


def environment() -> Path | None:
    """The Python of an environment with Flower; None if there is none to be had."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "feddbp-benchmarks" / FLOWER
    python, done = cache / "bin" / "python", cache / ".installed"
    if not done.exists():
        venv.create(cache, with_pip=True, clear=True)
        installed = subprocess.run(
            [python, "-m", "pip", "install", "--quiet", FLOWER], check=False, capture_output=True, text=True
        )
        if installed.returncode != 0:
            reason = installed.stderr.strip().splitlines()[-1:] or ["pip failed"]
            print(f"Flower is left out: {FLOWER} cannot be installed: {reason[0]}", file=sys.stderr)
            return None
        done.touch()
    return python


def run_flower(python: Path, setting: Setting) -> dict[str, object]:
    """What Flower's server prints after its rounds."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    rounds = (str(setting.clients), str(setting.rounds), str(setting.classes), port)
    server = _start(python, ("serve", *rounds), stdout=subprocess.PIPE)
    clients = [_start(python, ("join", port, str(setting.classes))) for _ in range(setting.clients)]
    try:
        output, _ = server.communicate(timeout=180)
    finally:
        for process in (server, *clients):
            process.kill()
            process.wait()
    printed: dict[str, object] = json.loads(output.splitlines()[-1])
    return printed


def _start(python: Path, words: Sequence[str], stdout: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [python, str(PROCESS), *words], stdout=stdout, stderr=subprocess.DEVNULL, text=True, env=QUIET
    )


def measure() -> list[Measurement]:
    python = environment()
    if python is None:
        return []
    comparison = compare(SETTING)  # just before, so that the machine is about as busy
    printed = run_flower(python, SETTING)
    ends = printed["ends"]
    assert isinstance(ends, list)
    assert isinstance(printed["peak"], int)
    later = ends[len(ends) // 10 :]
    steps = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(later)]
    seconds, cpu = median(step[0] for step in steps), sum(step[1] for step in steps) / len(steps)
    bare_seconds = median(bare.seconds for bare, _ in comparison.pairs)
    bare_cpu = sum(bare.cpu_seconds for bare, _ in comparison.pairs) / len(comparison.pairs)
    name = f"round of Flower {printed['version']}, legacy gRPC, against bare grpc.aio, {SETTING.name}"
    detail = (
        f"{1000 * seconds:.0f} ms, server CPU {1000 * cpu:.0f} ms, peak {printed['peak'] / 1e6:.0f} MB; "
        f"ours just before: {comparison.detail()}"
    )
    return [
        Measurement(question=name, value=seconds / bare_seconds, bar=None, detail=detail),
        Measurement(question=f"{name}: server CPU", value=cpu / bare_cpu, bar=None),
    ]
