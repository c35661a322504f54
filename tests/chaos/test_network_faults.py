"""Network faults under TLS: nothing hangs, the reason is logged, and the run ends with the same bits."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from benchmarks.light_client import LightClient
from light_runs import LIGHT_RUN, Crowd, exits, start_server, status_when
from processes import Command, Federation, Outcome, federation
from tcp_proxy import Direction, Fault, TcpProxy

from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_client.daemon.connection import CallTimeouts, Connection, ServerUnavailableError
from feddbp_common.config.run import RunConfig, run_to_proto
from feddbp_common.rpc.credentials import ClientCredentials
from feddbp_common.rpc.keepalive import DEFAULT_LEASE

INSIDE_A_TRANSFER = 200_000
"""Bytes: more than a handshake and all messages but those of a transfer take, and less than one transfer."""


@dataclass(frozen=True, kw_only=True)
class Behind:
    """A run of three clients under TLS, of which client 0 is behind a proxy."""

    proxy: TcpProxy
    crowd: Crowd
    server: Command
    federation: Federation


class Retries(logging.Handler):
    """The lines of the clients' log that give the reason for a retry."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: list[str] = []
        self._written = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "trying again" in record.getMessage():
            self._lines.append(record.getMessage())
            self._written.set()

    def of(self, client_id: int) -> list[str]:
        return [line for line in self._lines if line.startswith(f"client {client_id}: ")]

    async def first_of(self, client_id: int) -> str:
        while not (reasons := self.of(client_id)):
            self._written.clear()
            await self._written.wait()
        return reasons[0]


@pytest.fixture
def retries(caplog: pytest.LogCaptureFixture) -> Iterator[Retries]:
    handler, log = Retries(), logging.getLogger("feddbp.client")
    log.addHandler(handler)
    with caplog.at_level(logging.INFO, logger=log.name):
        yield handler
    log.removeHandler(handler)


@asynccontextmanager
async def behind_proxy(
    running: Federation, access: ClientCredentials, *options: object, others: Sequence[int] = (1, 2)
) -> AsyncIterator[Behind]:
    server = await start_server(running, "--certs", access.certs, *LIGHT_RUN, *options)
    with TcpProxy(running.port) as proxy:
        async with Crowd(running.address, [0, *others], access=access, addresses={0: proxy.address}) as crowd:
            yield Behind(proxy=proxy, crowd=crowd, server=server, federation=running)


@asynccontextmanager
async def alone_behind_proxy(running: Federation, access: ClientCredentials, *, width: int) -> AsyncIterator[Behind]:
    """A run of one client and one round, under the default lease."""
    options = ("--clients", 1, "--rounds", 1, "--feature-dim", width)
    server = await start_server(running, "--certs", access.certs, *options)
    with TcpProxy(running.port) as proxy:
        async with Crowd(proxy.address, [0], access=access) as crowd:
            yield Behind(proxy=proxy, crowd=crowd, server=server, federation=running)


async def expect_end(behind: Behind, expected: Outcome) -> None:
    await behind.crowd.ended()
    await exits(behind.server, 0)
    assert behind.federation.outcome() == expected


CUTS = [
    pytest.param(fault, direction, id=f"{fault.value}-{direction.value}", marks=() if is_fast else (pytest.mark.full,))
    for fault, direction, is_fast in (
        (Fault.RESET, Direction.UP, True),
        (Fault.RESET, Direction.DOWN, False),
        (Fault.CLOSE, Direction.UP, False),
        (Fault.CLOSE, Direction.DOWN, True),
        (Fault.HALF_CLOSE, Direction.UP, True),
        (Fault.HALF_CLOSE, Direction.DOWN, False),
        (Fault.SILENCE, Direction.UP, True),
        (Fault.SILENCE, Direction.DOWN, False),
    )
]


@pytest.mark.parametrize(("fault", "direction"), CUTS)
async def test_a_connection_lost_inside_a_transfer_costs_one_retry(
    fault: Fault,
    direction: Direction,
    running_federation: Federation,
    access: ClientCredentials,
    undisturbed_light: Outcome,
    retries: Retries,
) -> None:
    async with behind_proxy(running_federation, access) as behind:
        trigger = behind.proxy.set_trigger(fault, direction, INSIDE_A_TRANSFER)
        await trigger.fired()
        await expect_end(behind, undisturbed_light)
    assert retries.of(0)


@pytest.mark.parametrize(
    ("delay", "bytes_per_second"), [(0.1, None), (0.0, 1 << 20)], ids=["high latency", "low bandwidth"]
)
async def test_a_slow_network_only_takes_longer(
    delay: float,
    bytes_per_second: int | None,
    running_federation: Federation,
    access: ClientCredentials,
    undisturbed_light: Outcome,
    retries: Retries,
) -> None:
    async with behind_proxy(running_federation, access, "--lease", "30s") as behind:
        behind.proxy.delay, behind.proxy.bytes_per_second = delay, bytes_per_second
        await expect_end(behind, undisturbed_light)
    assert not retries.of(0)


@pytest.mark.full
@pytest.mark.parametrize(
    ("width", "delay", "bytes_per_second"),
    [(8192, 0.0, 22_000), (64, 1.5, None)],
    ids=["30 s for an upload, while a ping may wait for 20", "10 s for a handshake and a call"],
)
async def test_a_very_slow_network_is_not_taken_for_an_outage(
    width: int,
    delay: float,
    bytes_per_second: int | None,
    running_federation: Federation,
    access: ClientCredentials,
    retries: Retries,
) -> None:
    async with alone_behind_proxy(running_federation, access, width=width) as behind:
        behind.proxy.delay, behind.proxy.bytes_per_second = delay, bytes_per_second
        await behind.crowd.ended()
        await exits(behind.server, 0)
        assert behind.proxy.connections == 1
    assert not retries.of(0)


async def test_both_sides_notice_when_the_network_drops_everything(
    running_federation: Federation,
    access: ClientCredentials,
    undisturbed_light: Outcome,
    retries: Retries,
) -> None:
    async with behind_proxy(running_federation, access, others=[1]) as behind:
        await both_are_waiting(running_federation, access)
        behind.proxy.drop_everything()
        await status_when(running_federation.address, is_away(0), "the loss of client 0", access)
        assert "ping timeout" in await retries.first_of(0)
        behind.proxy.restore()
        async with Crowd(running_federation.address, [2], access=access) as last:
            await last.ended()
            await expect_end(behind, undisturbed_light)


async def test_clients_reconnect_to_a_proxy_that_restarts(
    running_federation: Federation,
    access: ClientCredentials,
    undisturbed_light: Outcome,
    retries: Retries,
) -> None:
    async with behind_proxy(running_federation, access, others=[1]) as behind:
        await both_are_waiting(running_federation, access)
        behind.proxy.stop()
        await retries.first_of(0)
        behind.proxy.start()
        async with Crowd(running_federation.address, [2], access=access) as last:
            await last.ended()
            await expect_end(behind, undisturbed_light)


async def both_are_waiting(running: Federation, access: ClientCredentials) -> None:
    def two_idle(status: pb.RunStatus) -> bool:
        return [client.activity for client in status.clients] == [pb.CLIENT_ACTIVITY_IDLE] * 2

    await status_when(running.address, two_idle, "two joins", access)


def is_away(client_id: int) -> Callable[[pb.RunStatus], bool]:
    return lambda status: any(
        client.client_id == client_id and client.activity == pb.CLIENT_ACTIVITY_AWAY for client in status.clients
    )


async def test_a_client_without_any_answer_gives_up_after_its_patience(
    running_federation: Federation, access: ClientCredentials, retries: Retries
) -> None:
    await start_server(running_federation, "--certs", access.certs, *LIGHT_RUN)
    with TcpProxy(running_federation.port) as proxy:
        proxy.drop_everything()
        connection = Connection(proxy.address, credentials=access, timeouts=CallTimeouts(answer=timedelta(seconds=1)))
        with pytest.raises(ServerUnavailableError, match=f"the server at {proxy.address} does not answer"):
            await LightClient(0, connection).run_reconnecting(patience=timedelta(seconds=2))
        await connection.close()
    assert retries.of(0)


# --- a server that hangs behind a live connection ---


class Hanging(pb_grpc.FederationServicer):
    """Admits a client, sends it no rounds, and stops answering after a number of calls."""

    def __init__(self, *, answers: int) -> None:
        self.asked = 0
        self._answers = answers
        self._stuck = asyncio.Event()

    async def GetRun(self, request: pb.GetRunRequest, context: object) -> pb.GetRunResponse:
        self.asked += 1
        if self.asked > self._answers:
            await self._stuck.wait()
        return pb.GetRunResponse(config=run_to_proto(RunConfig()), run_id="stuck")

    async def Join(self, request: pb.JoinRequest, context: object) -> pb.JoinResponse:
        response = pb.JoinResponse(session="session", epoch=1)
        response.lease.FromTimedelta(DEFAULT_LEASE)
        return response

    async def Follow(self, request: pb.FollowRequest, context: object) -> AsyncIterator[pb.RoundEvent]:
        yield pb.RoundEvent(waiting=pb.Waiting(reason="nothing to do"))
        await self._stuck.wait()


async def test_a_hung_server_is_distinguished_from_an_idle_one() -> None:
    hanging = Hanging(answers=4)  # type: ignore[abstract]  # in the stub only
    server = grpc.aio.server()
    pb_grpc.add_FederationServicer_to_server(hanging, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    bounds = CallTimeouts(answer=timedelta(seconds=1), quiet=timedelta(milliseconds=200))
    connection = Connection(f"127.0.0.1:{port}", timeouts=bounds)
    with pytest.raises(ServerUnavailableError, match="Deadline Exceeded"):
        await LightClient(0, connection).run()
    assert hanging.asked == 5  # once to prepare, three times while it answered, once without an answer
    await connection.close()
    await server.stop(None)


def test_timeouts_follow_the_deadline_a_server_announces() -> None:
    usual = CallTimeouts()
    long, short = usual.under(timedelta(minutes=30)), usual.under(timedelta(seconds=15))
    assert long == CallTimeouts(answer=usual.answer, transfer=usual.transfer, quiet=usual.quiet)
    assert short == CallTimeouts(
        answer=timedelta(seconds=15), transfer=timedelta(minutes=1), quiet=timedelta(seconds=15)
    )
    assert usual.under(timedelta(milliseconds=1)).answer == timedelta(seconds=10)


# --- real clients ---


@pytest.mark.full
@pytest.mark.parametrize("fault", [Fault.RESET, Fault.SILENCE], ids=lambda fault: fault.value)
async def test_a_real_client_survives_a_lost_connection(
    fault: Fault, running_federation: Federation, certs: Path, tmp_path: Path
) -> None:
    options = ("--clients", 2, "--rounds", 2, "--alpha", 1.0, "--local-epochs", 1, "--min-clients", 2, "--lease", "6s")
    with federation(tmp_path / "undisturbed") as undisturbed:
        for command in (undisturbed.server(*options), undisturbed.client("0-1")):
            await exits(command, 0)
    server = await start_server(running_federation, "--certs", certs, *options)
    with TcpProxy(running_federation.port) as proxy:
        # an upload of this run takes 40 kB, and everything else that is sent a fraction of it
        trigger = proxy.set_trigger(fault, Direction.UP, 30_000)
        direct = running_federation.client("1", "--certs", certs)
        behind = running_federation.client("0", "--certs", certs, "--server", proxy.address)
        await trigger.fired()
        for command in (behind, direct, server):
            await exits(command, 0)
    assert re.search(r"client 0: .* does not answer .*; trying again in", behind.log)
    assert running_federation.outcome() == undisturbed.outcome()
