"""A whole federation on this machine: one server and the clients of a run, as real processes on loopback.

async with LocalFederation(options) as federation:
    async for status in federation.statuses():
        ...
    summary = federation.summary()
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.config import ClientConfig, ComputeConfig, IdentityConfig, SourceConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.errors import ExitCode, FedDBPError
from feddbp_lab.control_client import watch_status
from feddbp_lab.processes.flags import arguments_for, clean_environment
from feddbp_lab.processes.supervisor import ChildProcess, ProcessSupervisor
from feddbp_lab.results.run_results import SUMMARY_NAME
from feddbp_server.config import ListenConfig, RoundsConfig, ServerConfig

T = TypeVar("T")
SERVER_MODULE: Final = "feddbp_server.cli"
CLIENT_MODULE: Final = "feddbp_client.cli"
_OVER: Final = (ExitCode.OK, ExitCode.RUN_FAILED)
"""Codes with which a process says that the run is over, well or not; the server's summary tells which."""
_FAREWELL_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.02


class RunInterruptedError(FedDBPError):
    """The server went away in good order, but before the run was over."""

    exit_code = ExitCode.RUN_FAILED


class ProcessFailedError(FedDBPError):
    """A process of the federation ended before the run did."""

    def __init__(self, child: ChildProcess, code: int, last_lines: list[str]) -> None:
        super().__init__(f"{child.name} ended with exit code {code}; its log is {child.log}")
        self.code = code or int(ExitCode.FAILURE)
        self.name = child.name
        self.last_lines = last_lines


@dataclass(frozen=True, kw_only=True)
class FederationOptions:
    """A run, and how it is spread over this machine."""

    run: RunConfig
    directory: Path
    """Everything the federation writes goes here."""
    processes: int
    """Client processes; ids are dealt out over them like cards."""
    data_dir: Path
    device: str = "auto"

    @property
    def server_dir(self) -> Path:
        return self.directory / "server"

    def server_config(self) -> ServerConfig:
        return ServerConfig(
            run=self.run,
            listen=ListenConfig(host="127.0.0.1", port=0, state_dir=self.server_dir),
            # Everyone takes part, however slow: whether a process is alive is seen here better than by a deadline.
            rounds=RoundsConfig(min_clients=self.run.clients, round_deadline=timedelta(0)),
        )

    def client_config(self, ids: list[int], address: str) -> ClientConfig:
        return ClientConfig(
            identity=IdentityConfig(
                ids=",".join(map(str, ids)),
                all_or_none=True,  # nor can the run go on without one of them
                server=address,
                state_dir=self.directory / "clients",
            ),
            compute=ComputeConfig(device=self.device),
            source=SourceConfig(data_dir=self.data_dir),
        )

    def ids_by_process(self) -> list[list[int]]:
        hands = min(self.processes, self.run.clients)
        return [list(range(first, self.run.clients, hands)) for first in range(hands)]


class LocalFederation:
    """Starts on entering, and on leaving has stopped every process it started."""

    def __init__(self, options: FederationOptions) -> None:
        self.options = options
        self.address = ""
        self._children = ProcessSupervisor()
        self._server: ChildProcess | None = None
        self._clients: list[ChildProcess] = []
        self._environment = clean_environment()
        self._watching: list[asyncio.Task[Any]] = []

    async def __aenter__(self) -> Self:
        # what a run that is taken up again wrote when it last listened is not to be believed
        self._endpoint_path.unlink(missing_ok=True)
        try:
            self._server = self._start(
                "the server", SERVER_MODULE, arguments_for(self.options.server_config()), log="server"
            )
            self.address = await self._endpoint(self._server)
            for number, ids in enumerate(self.options.ids_by_process()):
                arguments = arguments_for(self.options.client_config(ids, self.address))
                name = f"the process of {_clients(ids)}"
                self._clients.append(self._start(name, CLIENT_MODULE, arguments, log=f"clients-{number}"))
        except BaseException:
            await self._children.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # first, because a server that is told to go waits for whoever still listens to it
        await self._stop_watching()
        await self._children.stop()

    async def statuses(self) -> AsyncGenerator[pb.RunStatus, None]:
        """The run's status at every change, until the run is over and the server has written its summary.

        Raises ProcessFailedError as soon as a process ends that should not.
        """
        # the stream may be lost for as long as the server lives: `over` knows when it does not
        stream = watch_status(self.address, patience=timedelta(days=1))
        over, upcoming = self._watch(self._until_over()), self._watch(_next(stream))
        try:
            while True:
                await asyncio.wait((over, upcoming), return_when=asyncio.FIRST_COMPLETED)
                if over.done():
                    over.result()
                status = upcoming.result() if upcoming.done() else None
                if status is None:
                    await over
                    return
                yield status
                upcoming = self._watch(_next(stream))
        finally:
            await self._stop_watching()

    def summary(self) -> dict[str, Any]:
        """What the server wrote about the run when it was over."""
        if not self._summary_path.exists():
            raise RunInterruptedError("the server was stopped before the run was over")
        loaded: dict[str, Any] = json.loads(self._summary_path.read_text(encoding="utf-8"))
        return loaded

    @property
    def _endpoint_path(self) -> Path:
        return self.options.server_dir / "endpoint.json"

    @property
    def _summary_path(self) -> Path:
        return self.options.server_dir / SUMMARY_NAME

    def _start(self, name: str, module: str, arguments: list[str], *, log: str) -> ChildProcess:
        # -P: as with an installed command, nothing in the current directory stands in for a package
        command = (sys.executable, "-P", "-m", module, *arguments)
        path = self.options.directory / "logs" / f"{log}.log"
        return self._children.start(name, command, path, environment=self._environment)

    async def _endpoint(self, server: ChildProcess) -> str:
        """Where the server listens, as it says itself once it does."""
        while not self._endpoint_path.exists():
            if not server.running:
                raise _died(server)
            await asyncio.sleep(_POLL_SECONDS)
        endpoint = json.loads(self._endpoint_path.read_text(encoding="utf-8"))
        return f"{endpoint['host']}:{endpoint['port']}"

    def _watch(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._watching = [*(earlier for earlier in self._watching if not earlier.done()), task]
        return task

    async def _stop_watching(self) -> None:
        for task in self._watching:
            task.cancel()
        # their own errors, if they have any, were raised where they belong
        await asyncio.gather(*self._watching, return_exceptions=True)

    async def _until_over(self) -> None:
        assert self._server is not None
        while self._server.running:
            awaited = [child.ended for child in (self._server, *self._clients) if child.running]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            for child in (*self._clients, self._server):
                if child.ended.done() and child.ended.result() not in _OVER:
                    raise _died(child)
        # clients that have heard of the end leave by themselves
        leaving = [child.ended for child in self._clients if child.running]
        if leaving and self._summary_path.exists():
            await asyncio.wait(leaving, timeout=_FAREWELL_SECONDS)


def _died(child: ChildProcess) -> ProcessFailedError:
    return ProcessFailedError(child, child.ended.result(), child.last_lines(12))


def _clients(ids: list[int]) -> str:
    return f"client {ids[0]}" if len(ids) == 1 else f"clients {', '.join(map(str, ids))}"


async def _next(stream: AsyncIterator[pb.RunStatus]) -> pb.RunStatus | None:
    return await anext(stream, None)
