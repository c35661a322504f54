"""A federation in containers under its own Compose project name; other projects are not touched."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from feddbp_common.artifacts import METRICS_NAME, SUMMARY_NAME
from feddbp_lab.commands.compose import ComposeConfig, FileConfig, compose_file
from feddbp_lab.commands.options import DemoRun

CHECKOUT: Final = Path(__file__).resolve().parents[2]
CLIENTS: Final = 3
ROUNDS: Final = 6
LEASE_SECONDS: Final = 5
"""Short, so that an outage longer than the lease does not take long."""
PATIENCE_SECONDS: Final = 900.0
_OVERLAY: Final = f"services: {{server: {{environment: {{FEDDBP_LEASE: {LEASE_SECONDS}s}}}}}}\n"


class TrialError(Exception):
    """A trial timed out, or the engine refused a command."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a run."""

    exit_codes: dict[str, int]
    prototypes: str
    metrics: list[dict[str, Any]]

    @property
    def succeeded(self) -> bool:
        return set(self.exit_codes.values()) == {0}


def docker(*arguments: str, check: bool = True) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True)
    if check and done.returncode != 0:
        raise TrialError(f"docker {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout + done.stderr


def engine_answers() -> bool:
    try:
        return subprocess.run(["docker", "info"], capture_output=True, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TrialError(f"{what} did not happen within {PATIENCE_SECONDS:g} s")
        time.sleep(0.25)


class Project:
    """The containers, networks and volumes of one project name."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.network = f"{name}_federation"
        file, overlay = directory / "docker-compose.yml", directory / "overlay.yml"
        config = ComposeConfig(file=FileConfig(source=CHECKOUT), run=DemoRun(clients=CLIENTS, rounds=ROUNDS))
        file.write_text(compose_file(config))
        overlay.write_text(_OVERLAY)
        self._prefix = ("compose", "--project-name", name, "--file", str(file), "--file", str(overlay))

    def compose(self, *arguments: str) -> str:
        return docker(*self._prefix, *arguments)

    def start(self) -> None:
        self.compose("up", "--detach")

    def remove(self) -> None:
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "0")

    def container(self, service: str) -> str:
        return self.compose("ps", "--all", "--quiet", service).strip()

    def state(self, service: str, template: str) -> str:
        return docker("inspect", "--format", template, self.container(service)).strip()

    def log(self, service: str) -> str:
        return docker("logs", self.container(service))

    def wait_for_round(self, number: int) -> None:
        wait_until(lambda: f"round {number} is open" in self.log("server"), f"round {number}")

    def has_finished(self) -> bool:
        return "the run finished" in self.log("server")

    def wait_for_end(self) -> None:
        wait_until(lambda: set(self._containers("State")) == {"exited"}, "the end of the run")

    def outcome(self) -> Outcome:
        metrics = [json.loads(line) for line in self._file_of_server(METRICS_NAME).splitlines()]
        for line in metrics:
            del line["seconds"]
        return Outcome(
            exit_codes=dict(zip(self._containers("Service"), self._containers("ExitCode"), strict=True)),
            prototypes=json.loads(self._file_of_server(SUMMARY_NAME))["prototypes_sha256"],
            metrics=sorted(metrics, key=lambda line: (line["round"], line["client"])),
        )

    def _containers(self, field: str) -> list[Any]:
        listed = self.compose("ps", "--all", "--format", "json")
        return [json.loads(line)[field] for line in listed.splitlines() if line.startswith("{")]

    def _file_of_server(self, name: str) -> str:
        with tempfile.TemporaryDirectory() as here:
            self.compose("cp", f"server:/var/lib/feddbp/{name}", here)
            return (Path(here) / name).read_text()
