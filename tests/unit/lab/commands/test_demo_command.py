"""`feddbp demo` with real processes: a real server, and clients that do not train."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from lab_fake_demo import python_path
from processes import processes_naming

from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_client.cli import main as client_main
from feddbp_lab.processes.guard import GRACE_SECONDS
from feddbp_server.cli import main as server_main

PATIENCE = 60.0


class Demo:
    """`feddbp demo` as a process."""

    def __init__(self, out: Path, *options: str, **environment: str) -> None:
        self.out = out
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lab_fake_demo", "demo", "--out", str(out), "--processes", "2", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": python_path(), **environment},
        )

    def end(self) -> tuple[int, str, str]:
        output, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, output, errors

    def descendants(self) -> list[int]:
        """Processes that have the output directory on their command line, other than the demo itself."""
        return [pid for pid in processes_naming(self.out) if pid != self.process.pid]

    def wait_until_it_trains(self) -> None:
        metrics = self.out / "server" / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and metrics.read_text())
        assert len(self.descendants()) == 6  # the server, two client processes, and a guard for each


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    started: list[Demo] = []

    def start_demo(*options: str, **environment: str) -> Demo:
        started.append(Demo(tmp_path / "out", "--clients", "3", *options, **environment))
        return started[-1]

    yield start_demo
    for demo in started:
        demo.process.kill()
        demo.process.communicate()


def test_a_demo_prints_every_round_and_writes_its_results(start: Callable[..., Demo]) -> None:
    demo = start("--rounds", "3", FEDDBP_SET="tau=0.1", FEDDBP_ID="5")
    code, output, errors = demo.end()
    assert (code, errors) == (0, "")
    rounds = [line for line in output.splitlines() if line.startswith("round ")]
    assert [line.split()[1] for line in rounds] == ["1/3", "2/3", "3/3"]
    assert "3 clients have joined" in output
    assert [line for line in output.splitlines() if line != line.rstrip()] == []
    *_, report, repeat, server, clients = (line.partition("#")[0].split() for line in output.splitlines())
    assert report == ["next", "feddbp", "report", str(demo.out)]
    assert repeat == ["feddbp", "demo", "--method", "local"]
    assert server_main([*server[1:], "--dry-run"]) == 0
    assert client_main([*clients[1:], "--dry-run"]) == 0
    summary = json.loads((demo.out / "summary.json").read_text())
    assert summary["outcome"] == "finished"
    assert summary["config"]["method_settings"]["tau"] == 0.1
    assert f"accuracy  {100 * summary['accuracy']['last']['weighted']:.1f} %" in rounds[-1]
    assert len((demo.out / "metrics.jsonl").read_text().splitlines()) == 3 * 4
    assert (demo.out / "curves.png").stat().st_size > 10_000
    assert {path.name for path in (demo.out / "logs").iterdir()} == {"server.log", "clients-0.log", "clients-1.log"}
    assert demo.descendants() == []


def test_json_is_the_only_standard_output(start: Callable[..., Demo]) -> None:
    code, output, errors = start("--rounds", "1", "--json").end()
    assert (code, errors) == (0, "")
    summary: dict[str, Any] = json.loads(output)
    assert summary["completed_rounds"] == 1


def test_a_client_that_exits_ends_the_demo_with_its_cause(start: Callable[..., Demo]) -> None:
    demo = start("--rounds", "50", FAKE_EXIT="1,2,7")
    code, _, errors = demo.end()
    assert code == 7
    assert "client 1 exits: FAKE_EXIT" in errors
    assert errors.splitlines()[-1].startswith("feddbp demo: error: the process of client 1 ended with exit code 7")
    assert demo.descendants() == []


def test_a_killed_server_ends_the_demo_with_its_exit_code(start: Callable[..., Demo]) -> None:
    demo = start("--rounds", "500", FAKE_EPOCH_SECONDS="0.05")
    demo.wait_until_it_trains()
    endpoint = json.loads((demo.out / "server" / "endpoint.json").read_text())
    os.kill(endpoint["pid"], signal.SIGKILL)
    code, _, errors = demo.end()
    assert code == 128 + signal.SIGKILL
    assert "listening on 127.0.0.1" in errors
    assert "the server ended with exit code 137" in errors
    assert demo.descendants() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_stops_every_process(start: Callable[..., Demo], number: signal.Signals) -> None:
    demo = start("--rounds", "500", FAKE_EPOCH_SECONDS="0.05")
    demo.wait_until_it_trains()
    demo.process.send_signal(number)
    code, _, errors = demo.end()
    assert code == 130
    assert errors.startswith("feddbp demo: stopping every process…\n")
    assert "interrupted, every process is stopped; a demo is not resumed, run it again with another --out" in errors
    assert demo.descendants() == []


def test_a_second_signal_kills_processes_that_do_not_stop(start: Callable[..., Demo]) -> None:
    demo = start("--rounds", "500", FAKE_EPOCH_SECONDS="0.05", FAKE_HANG="1")
    demo.wait_until_it_trains()
    demo.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    logs = [demo.out / "logs" / f"clients-{number}.log" for number in range(2)]
    wait_for(lambda: all("SIGTERM is ignored" in log.read_text() for log in logs))
    assert demo.process.poll() is None
    demo.process.send_signal(signal.SIGINT)
    assert demo.end()[0] == 130
    assert time.monotonic() - began < GRACE_SECONDS  # at which they would be killed without it
    wait_for(lambda: not demo.descendants())


def test_no_process_outlives_a_killed_demo(start: Callable[..., Demo]) -> None:
    demo = start("--rounds", "500", FAKE_EPOCH_SECONDS="0.05")
    demo.wait_until_it_trains()
    demo.process.kill()
    wait_for(lambda: not demo.descendants())


def test_a_server_stopped_by_a_signal_does_not_count_as_a_finished_run(start: Callable[..., Demo]) -> None:
    demo = start("--rounds", "500", FAKE_EPOCH_SECONDS="0.05")
    demo.wait_until_it_trains()
    endpoint = json.loads((demo.out / "server" / "endpoint.json").read_text())
    os.kill(endpoint["pid"], signal.SIGTERM)
    code, _, errors = demo.end()
    assert code == 5
    assert "the server was stopped before the run was over" in errors
    assert demo.descendants() == []


def test_a_run_stopped_by_an_operator_is_reported_with_its_reason(start: Callable[..., Demo]) -> None:
    demo = start("--rounds", "500", FAKE_EPOCH_SECONDS="5")
    log = demo.out / "logs" / "server.log"
    wait_for(lambda: log.exists() and "round 1/500 is open" in log.read_text())
    port = json.loads((demo.out / "server" / "endpoint.json").read_text())["port"]
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        pb_grpc.ControlStub(channel).Stop(pb.StopRequest(reason="enough seen"))
    code, output, _ = demo.end()
    assert code == 5
    assert "stopped: enough seen" in output
    assert (demo.out / "curves.png").exists()
    assert demo.descendants() == []
