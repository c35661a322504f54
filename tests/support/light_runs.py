"""Runs of a real server process and light clients on the test's event loop; a whole run takes a second or two."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.light_client import LightClient, OnEvent
from processes import PATIENCE, Command, Federation, GaveUpError, Outcome, federation

from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_client.daemon.connection import USED_FEATURES, CallTimeouts, Connection
from feddbp_common.fault_injection import VARIABLE
from feddbp_common.rpc.credentials import OPERATOR, ClientCredentials, client_subject
from feddbp_common.rpc.server_features import ADMISSION_FEATURE

# wide enough that an upload takes several chunks: some faults are inside a stream
LIGHT_RUN = ("--clients", 3, "--rounds", 3, "--min-clients", 3, "--feature-dim", 8192, "--lease", "1s")


EARLIER_FEATURES = frozenset({ADMISSION_FEATURE})
"""What clients use before states came with events and reports with uploads."""


class Crowd:
    """Light clients that take part until the run ends, each over its own connection.

    Client 2 downloads and reports in calls of their own, as clients of earlier versions do.
    """

    def __init__(
        self,
        address: str,
        ids: Iterable[int],
        *,
        access: ClientCredentials = ClientCredentials(),  # noqa: B008 - frozen
        addresses: Mapping[int, str] | None = None,
        on_event: Mapping[int, OnEvent] | None = None,
        bounds: CallTimeouts = CallTimeouts(),  # noqa: B008 - frozen
    ) -> None:
        self.connections = {
            number: Connection(
                (addresses or {}).get(number, address),
                client_id=number,
                credentials=access,
                timeouts=bounds,
                used_features=features_used_by(number),
            )
            for number in ids
        }
        self.clients = {number: LightClient(number, connection) for number, connection in self.connections.items()}
        self._on_event = on_event or {}
        self._tasks: dict[int, asyncio.Task[pb.RunEnded | None]] = {}

    async def __aenter__(self) -> Self:
        for number, client in self.clients.items():
            staying = client.run_reconnecting(self._on_event.get(number), patience=timedelta(seconds=PATIENCE))
            self._tasks[number] = asyncio.create_task(staying)
        return self

    async def ended(self, seconds: float = PATIENCE) -> dict[int, pb.RunEnded | None]:
        """How the run ended for each client; raises the error of the first that failed."""
        done, _ = await asyncio.wait(self._tasks.values(), timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        outcomes = {number: task.result() for number, task in self._tasks.items() if task in done}
        if outcomes.keys() != self._tasks.keys():
            raise GaveUpError(f"clients {self._tasks.keys() - outcomes.keys()} are still running after {seconds:g}s")
        return outcomes

    async def lose(self, number: int) -> None:
        """Drops a client without a Leave, and everything it knows: as if its machine were lost."""
        self._tasks.pop(number).cancel()
        await self.connections.pop(number).close()
        del self.clients[number]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await asyncio.gather(*(connection.close() for connection in self.connections.values()))


class Gate:
    """Holds a light client at the beginning of a round or of the last evaluation, or at its first event."""

    def __init__(self, *, at_round: int | None = None) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()
        self._at_round = at_round

    async def __call__(self, event: pb.RoundEvent) -> None:
        if self._at_round is None or self._at_round in _rounds_begun_by(event):
            self.reached.set()
            await self.opened.wait()


def _rounds_begun_by(event: pb.RoundEvent) -> list[int]:
    if event.HasField("final_evaluation"):
        return [event.final_evaluation.round]
    return [event.round_opened.round] if event.HasField("round_opened") else []


async def start_server(running: Federation, *options: object, fault: str | None = None, forked: bool = True) -> Command:
    """Starts the server without blocking the event loop; `fault` is the point where it will be killed."""
    return await asyncio.to_thread(running.server, *options, env=_environment(fault), forked=forked)


def _environment(fault: str | None) -> dict[str, str] | None:
    return None if fault is None else {VARIABLE: fault}


async def start_client(running: Federation, ids: object, *options: object, fault: str | None = None) -> Command:
    """Starts real clients without blocking the event loop; `fault` is the point where they will be killed."""
    return await asyncio.to_thread(running.client, ids, *options, env=_environment(fault))


async def exits(command: Command, code: int) -> None:
    await asyncio.to_thread(command.expect_exit, code)


async def is_killed(command: Command) -> None:
    """Waits until the process was killed at its fault point."""
    await asyncio.to_thread(command.expect_killed)


async def finish(running: Federation, *options: object, clients: int = 3) -> Outcome:
    """Runs a federation from start to end without any fault."""
    server = await start_server(running, *options)
    async with Crowd(running.address, range(clients)) as crowd:
        await crowd.ended()
    await exits(server, 0)
    return running.outcome()


def undisturbed_outcome(directory: Path, *options: object, clients: int = 3) -> Outcome:
    """The outcome of a run without faults; for fixtures."""
    with federation(directory) as running:
        return asyncio.run(finish(running, *options, clients=clients))


def features_used_by(client_id: int) -> frozenset[str]:
    """Client 2 is one of an earlier version."""
    return EARLIER_FEATURES if client_id == 2 else USED_FEATURES


@asynccontextmanager
async def begun_together(running: Federation, crowd: Crowd, *, others: int = 0) -> AsyncIterator[Crowd]:
    """Pauses the run until the whole crowd and the other clients have joined; a quorum would be enough for it."""
    async with control_of(running.address) as control:
        await control.Pause(pb.PauseRequest())
        async with crowd:
            everyone = len(crowd.clients) + others
            await status_when(running.address, lambda status: len(status.clients) == everyone, "everyone's join")
            await control.Resume(pb.ResumeRequest())
            yield crowd


@asynccontextmanager
async def federation_of(
    address: str,
    subject: str = client_subject(0),
    access: ClientCredentials = ClientCredentials(),  # noqa: B008 - frozen
) -> AsyncIterator[pb_grpc.FederationAsyncStub]:
    """A client's stub, for calls that the server is to refuse."""
    async with access.channel(address, subject) as channel:
        stub: pb_grpc.FederationAsyncStub = pb_grpc.FederationStub(channel)
        yield stub


@asynccontextmanager
async def control_of(
    address: str,
    access: ClientCredentials = ClientCredentials(),  # noqa: B008 - frozen
) -> AsyncIterator[pb_grpc.ControlAsyncStub]:
    """The operator's stub."""
    async with access.channel(address, OPERATOR) as channel:
        stub: pb_grpc.ControlAsyncStub = pb_grpc.ControlStub(channel)
        yield stub


async def status_when(
    address: str,
    condition: Callable[[pb.RunStatus], bool],
    what: str,
    access: ClientCredentials = ClientCredentials(),  # noqa: B008 - frozen
) -> pb.RunStatus:
    """The first status that fulfils a condition, from the stream of `WatchStatus`."""
    newest = pb.RunStatus()
    async with control_of(address, access) as control:
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                async for newest in control.WatchStatus(pb.WatchStatusRequest(), metadata=access.metadata()):
                    if condition(newest):
                        return newest
    raise GaveUpError(f"{what} did not happen; the last status was:\n{newest}")


async def round_open(address: str, number: int) -> pb.RunStatus:
    """Waits until clients can take part in a round."""
    return await status_when(
        address, lambda status: (status.phase, status.round) == (pb.PHASE_COLLECTING, number), f"round {number}"
    )
