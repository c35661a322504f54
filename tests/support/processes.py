"""The commands as processes on loopback; everything they write is in a directory of the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from prefork import ForkedProcess, Template

from feddbp_common.artifacts import ENDPOINT_NAME, METRICS_NAME, SUMMARY_NAME
from feddbp_common.fault_injection import VARIABLE as FAULT_VARIABLE

_WITHOUT_TORCH: Final = Template("feddbp_server.cli", "feddbp_server.app", "feddbp_lab.cli")
_WITH_TORCH: Final = Template(
    "feddbp_client.process", "feddbp_client.training.setup", "sklearn.datasets", "torch._dynamo"
)
TEMPLATES: Final = {
    "feddbp_server.cli": _WITHOUT_TORCH,
    "feddbp_lab.cli": _WITHOUT_TORCH,
    "feddbp_client.cli": _WITH_TORCH,
}
"""By command, the template process that it is forked from."""

Outcome = tuple[str, list[dict[str, Any]]]
PATIENCE = 240.0
"""Seconds after which a wait in a test has failed; a ceiling only, nothing is measured by it."""


class GaveUpError(AssertionError):
    """An event that a test waits for did not happen in time."""


def wait_until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise GaveUpError(f"{what} did not happen within {seconds:g}s")


def processes_naming(path: Path) -> list[int]:
    """Ids of processes that have the path on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_text()
            except OSError:
                continue
            if str(path) in command:
                found.append(int(entry.name))
    return found


def summary_in(directory: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((directory / SUMMARY_NAME).read_text())
    return loaded


def metrics_in(directory: Path) -> list[dict[str, Any]]:
    """The metrics file as it is now, without a line that is being written."""
    text = (directory / METRICS_NAME).read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def outcome_in(directory: Path) -> Outcome:
    """What faults must not change: the digest of the prototypes, and every metric but durations."""
    lines = [{key: value for key, value in line.items() if key != "seconds"} for line in metrics_in(directory)]
    return summary_in(directory)["prototypes_sha256"], sorted(lines, key=lambda line: (line["round"], line["client"]))


@dataclass
class Command:
    """A running command whose output goes to a file."""

    name: str
    process: subprocess.Popen[bytes] | ForkedProcess
    log_path: Path
    stdout_path: Path | None = None
    """Where its standard output goes, if not to the log."""

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def wait(self, seconds: float = PATIENCE) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise GaveUpError(f"{self.name} is still running after {seconds:g}s; its log:\n{self.log}") from None

    def kill(self) -> None:
        """Sends SIGKILL, as a power cut would look to the others, and waits for the end."""
        self.process.kill()
        self.process.wait()

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def terminate(self) -> None:
        self.process.terminate()

    def expect_exit(self, code: int, seconds: float = PATIENCE) -> None:
        assert self.wait(seconds) == code, f"{self.name} exited with {self.process.returncode}; its log:\n{self.log}"

    def expect_killed(self) -> None:
        """Waits until the process is killed at the fault point it was started with."""
        self.expect_exit(-signal.SIGKILL)


class Federation:
    """A server and its clients under one directory; those that still run are killed at the end of the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.commands: list[Command] = []
        self.port = 0
        self.state_dir = directory / "server"
        """Where the test finds the server's files; in a mount namespace the server has another path for them."""
        self.before_server: tuple[str, ...] = ()
        """Prefix of the server's command, e.g. to run it in a mount namespace."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(
        self,
        module: str,
        *arguments: object,
        name: str,
        env: dict[str, str] | None = None,
        before: Sequence[str] = (),
        forked: bool = True,
        separate_stdout: bool = False,
    ) -> Command:
        """Starts a command; `forked` says whether it may be forked from a template instead of a new interpreter.

        It may not if `env` has a PYTHONPATH: the template has imported our modules from elsewhere. Standard output and
        error go to the log, or with `separate_stdout` to two files.
        """
        log_path = self.directory / f"{name}-{len(self.commands)}.log"
        own_path = env is not None and "PYTHONPATH" in env
        template = TEMPLATES.get(module) if forked and not before and not own_path else None
        words = list(map(str, arguments))
        environment = {**os.environ, **(env or {})}
        process: subprocess.Popen[bytes] | ForkedProcess
        stdout_path = log_path.with_suffix(".stdout") if separate_stdout else None
        with ExitStack() as files:
            log = files.enter_context(log_path.open("wb"))
            output = log if stdout_path is None else files.enter_context(stdout_path.open("wb"))
            if template is not None:
                process = template.start(
                    module, words, stdout=output.fileno(), stderr=log.fileno(), env=environment, cwd=self.directory
                )
            else:
                process = subprocess.Popen(
                    [*before, sys.executable, "-m", module, *words],
                    stdout=output,
                    stderr=log,
                    env=environment,
                    cwd=self.directory,
                )
        command = Command(name, process, log_path, stdout_path)
        self.commands.append(command)
        return command

    def server(
        self,
        *options: object,
        env: dict[str, str] | None = None,
        forked: bool = True,
        module: str = "feddbp_server.cli",
    ) -> Command:
        """Starts the server and waits until it listens; on the same port if it was started before."""
        endpoint = self.state_dir / ENDPOINT_NAME
        endpoint.unlink(missing_ok=True)
        place = ("--port", self.port, "--state-dir", self.directory / "server")
        command = self.start(
            module,
            *place,
            *options,
            name="server",
            env=env,
            before=self.before_server,
            forked=forked,
        )

        def started() -> bool:
            ended = command.process.poll()
            if endpoint.exists():  # it has listened, and may have been killed at its fault point since
                self.port = json.loads(endpoint.read_text())["port"]
                return True
            if ended == -signal.SIGKILL and self.port and env is not None and FAULT_VARIABLE in env:
                return True  # killed before it listened, on the port that is known from before
            if ended is not None:
                raise GaveUpError(f"the server ended with {ended}:\n{command.log}")
            return False

        wait_until(started, "the server's start")
        return command

    def client(self, ids: object, *options: object, env: dict[str, str] | None = None) -> Command:
        return self.start(
            "feddbp_client.cli",
            "--ids",
            ids,
            "--server",
            self.address,
            "--state-dir",
            self.directory / "clients",
            "--device",
            "cpu",
            "--threads",
            "1",
            *options,
            name=f"client-{ids}",
            env=env,
        )

    def summary(self) -> dict[str, Any]:
        return summary_in(self.state_dir)

    def metrics(self) -> list[dict[str, Any]]:
        return metrics_in(self.state_dir)

    def outcome(self) -> Outcome:
        return outcome_in(self.state_dir)

    def stop_all(self) -> None:
        for command in self.commands:
            if command.process.poll() is None:
                command.kill()


@contextmanager
def federation(directory: Path) -> Iterator[Federation]:
    directory.mkdir(parents=True, exist_ok=True)
    running = Federation(directory)
    try:
        yield running
    finally:
        running.stop_all()
