"""A federation on this machine: the server and the clients of a run as child processes, connected over loopback.

async with LocalFederation(options) as federation:
    async for status in federation.statuses():
        ...
    summary = federation.summary()
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.artifacts import ENDPOINT_NAME, SUMMARY_NAME
from feddbp_common.errors import ExitCode, FedDBPError
from feddbp_common.humanize import client_names
from feddbp_common.optional_deps import CLIENT_MODULES, LAB_MODULES, require
from feddbp_lab.control_client import watch_status
from feddbp_lab.processes.federation_options import FederationOptions
from feddbp_lab.processes.flags import arguments_for, clean_environment
from feddbp_lab.processes.freeze import frozen
from feddbp_lab.processes.supervisor import ChildProcess, ProcessSupervisor
from feddbp_lab.trackers.tracking import Tracker, follow

log = logging.getLogger("feddbp.lab")

T = TypeVar("T")
SERVER_MODULE: Final = "feddbp_server.cli"
CLIENT_MODULE: Final = "feddbp_client.cli"
_RUN_ENDED_CODES: Final = (ExitCode.OK, ExitCode.RUN_FAILED)
"""Exit codes of a process whose run has ended, finished or not; the server's summary has the outcome."""
_SERVER_CODES: Final = (*_RUN_ENDED_CODES, ExitCode.INTERRUPTED)
"""A server that a signal has stopped did not fail; it has no summary then."""
_CLIENT_EXIT_SECONDS: Final = 10.0
_LAST_EVENT_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.02


def require_client(feature: str) -> None:
    """Raises ConfigurationError unless everything is installed that running clients needs."""
    require(feature, CLIENT_MODULES, extra="client")


def require_lab(feature: str) -> None:
    """Raises ConfigurationError unless everything is installed that running clients and writing reports needs."""
    require(feature, LAB_MODULES, extra="lab")


class RunInterruptedError(FedDBPError):
    """The server shut down in good order before the run had ended."""

    exit_code = ExitCode.RUN_FAILED


class ProcessFailedError(FedDBPError):
    """A process of the federation exited before the run had ended."""

    def __init__(self, child: ChildProcess, code: int, last_lines: list[str]) -> None:
        self.reason = next(filter(None, map(_error_in, reversed(last_lines))), "")
        """The error with which the process ended, from its log; empty if there is none."""
        ended = f"{child.name} ended with exit code {code}"
        super().__init__(f"{ended}{': ' if self.reason else ''}{self.reason}; its log is {child.log}")
        self.code = code or int(ExitCode.FAILURE)
        self.name = child.name
        self.last_lines = last_lines


class LocalFederation:
    """Starts the server and the clients on entering the context; leaving it stops every process."""

    def __init__(self, options: FederationOptions) -> None:
        self.options = options
        self.address = ""
        """HOST:PORT of the server, once the context is entered."""
        self._supervisor = ProcessSupervisor()
        self._server: ChildProcess | None = None
        self._clients: list[ChildProcess] = []
        self._environment = {**clean_environment(), **options.environment()}
        self._tasks: list[asyncio.Task[Any]] = []
        self._tracker = Tracker(options.track) if options.track else None
        self._tracking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._start_processes()
        except BaseException:
            await self._stop()
            raise
        return self

    async def _start_processes(self) -> None:
        # a resumed run has the file of its last start, with a port that is no longer its own
        self._endpoint_path.unlink(missing_ok=True)
        if self.options.certs is not None:
            from feddbp_lab.pki.parties import make_local_parties  # cryptography is slow to import

            make_local_parties(self.options.certs, self.options.certified_parties())
        self._server = self._start("the server", SERVER_MODULE, self.options.server_arguments(), log="server")
        self.address = await self._wait_for_endpoint(self._server)
        if self._tracker is not None:
            self._tracking = asyncio.create_task(follow(self._tracker, self.address, self.options.credentials))
        for number, ids in enumerate(self.options.ids_by_process()):
            arguments = arguments_for(self.options.client_config(ids, self.address))
            name = f"the process of {client_names(ids)}"
            self._clients.append(self._start(name, CLIENT_MODULE, arguments, log=f"clients-{number}"))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # the streams first: a server that shuts down waits for those that are open
        await self._cancel_tasks()
        await self._stop()

    async def _stop(self) -> None:
        try:
            await self._stop_tracking()
        finally:
            await self._supervisor.stop()

    async def statuses(self) -> AsyncGenerator[pb.RunStatus, None]:
        """The run's status now and at every change, until the run has ended and the server has written its summary.

        Raises ProcessFailedError as soon as a process exits that should not.
        """
        # no limit on reconnecting: `ended` completes when the server exits
        stream = watch_status(self.address, self.options.credentials, patience=timedelta(days=1))
        ended, upcoming = self._spawn(self._wait_for_end()), self._spawn(_next(stream))
        try:
            while True:
                await asyncio.wait((ended, upcoming), return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    ended.result()
                status = upcoming.result() if upcoming.done() else None
                if status is None:
                    await ended
                    return
                yield status
                upcoming = self._spawn(_next(stream))
        finally:
            await self._cancel_tasks()

    def frozen(self) -> AbstractContextManager[None]:
        """Stops all processes inside of the context, so that their files can be copied."""
        return frozen([child.pid for child in self._supervisor.running])

    async def _stop_tracking(self) -> None:
        if self._tracking is not None:
            # the end of the run may have arrived, but not been read
            await asyncio.wait([self._tracking], timeout=_LAST_EVENT_SECONDS)
            self._tracking.cancel()
            await asyncio.wait([self._tracking])
            if not self._tracking.cancelled() and (error := self._tracking.exception()) is not None:
                log.warning("the run was not tracked to its end: %s", error)
        if self._tracker is not None:
            await asyncio.to_thread(self._tracker.close)

    def summary(self) -> dict[str, Any]:
        """The server's `summary.json`; raises RunInterruptedError if the run had not ended."""
        if not self._summary_path.exists():
            raise RunInterruptedError("the server was stopped before the run was over")
        loaded: dict[str, Any] = json.loads(self._summary_path.read_text(encoding="utf-8"))
        return loaded

    @property
    def core_seconds(self) -> float:
        """CPU time of all processes that have ended: of all of them, once the context is left."""
        return self._supervisor.core_seconds

    @property
    def _endpoint_path(self) -> Path:
        return self.options.server_dir / ENDPOINT_NAME

    @property
    def _summary_path(self) -> Path:
        return self.options.server_dir / SUMMARY_NAME

    def _start(self, name: str, module: str, arguments: list[str], *, log: str) -> ChildProcess:
        # -P: as for an installed command, the current directory is not searched for packages
        command = (sys.executable, "-P", "-m", module, *arguments)
        path = self.options.directory / "logs" / f"{log}.log"
        return self._supervisor.start(name, command, path, environment=self._environment)

    async def _wait_for_endpoint(self, server: ChildProcess) -> str:
        """The address the server listens on; it writes the file once it listens."""
        while not self._endpoint_path.exists():
            if not server.running:
                raise _failure(server)
            await asyncio.sleep(_POLL_SECONDS)
        endpoint = json.loads(self._endpoint_path.read_text(encoding="utf-8"))
        return f"{endpoint['host']}:{endpoint['port']}"

    async def _wait_for_end(self) -> None:
        """Returns once the server has exited and its clients have had time to; raises if a process fails."""
        assert self._server is not None
        while self._server.running:
            awaited = [child.exited for child in (self._server, *self._clients) if child.running]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            for child in (*self._clients, self._server):
                expected = _SERVER_CODES if child is self._server else _RUN_ENDED_CODES
                if child.exited.done() and child.exited.result() not in expected:
                    raise _failure(child)
        # clients that were notified of the end exit by themselves
        exiting = [child.exited for child in self._clients if child.running]
        if exiting and self._summary_path.exists():
            await asyncio.wait(exiting, timeout=_CLIENT_EXIT_SECONDS)

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks = [*(earlier for earlier in self._tasks if not earlier.done()), task]
        return task

    async def _cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        # an error of theirs was raised by `statuses` already
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _error_in(line: str) -> str:
    """The error in a line of a log, or in the line with which a command ends."""
    return line.partition(": error: ")[2] or line.partition(" ERROR ")[2].strip()


def _failure(child: ChildProcess) -> ProcessFailedError:
    return ProcessFailedError(child, child.exited.result(), child.last_lines(12))


async def _next(stream: AsyncIterator[pb.RunStatus]) -> pb.RunStatus | None:
    return await anext(stream, None)
