"""A server in the middle of a round that receives malformed calls, and the clients that finish the run afterwards."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from random import Random

from benchmarks.light_client import LightClient
from light_runs import control_of, exits, features_used_by, round_open, start_server
from malformed_calls import OpenRound, malformed_calls, violation
from processes import Command, Federation
from raw_calls import RawAnswer, RawCall, RawChannel
from server_state import durable_digest, resident_bytes, run_digest

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.connection import Connection
from feddbp_client.daemon.transfers import upload_parts

CLIENTS = 16
RUN = (
    *("--clients", CLIENTS, "--min-clients", CLIENTS, "--rounds", 3, "--round-deadline", 0, "--lease", "1h"),
    *("--dataset", "custom", "--classes", 5, "--feature-dim", 8, "--set", "k_top=2"),
)
_MOST_VIOLATIONS = 20


@dataclass
class FuzzedServer:
    """A run with its server and clients, to be compared before and after malformed calls."""

    federation: Federation
    server: Command
    open_round: OpenRound
    clients: Sequence[LightClient]

    @property
    def pid(self) -> int:
        return self.server.process.pid

    async def digest(self) -> tuple[str, str]:
        """Digests of the database and of the status."""
        async with control_of(self.federation.address) as control:
            status: pb.RunStatus = await control.GetStatus(pb.GetStatusRequest())
        return durable_digest(self.federation.state_dir), run_digest(status)

    async def refusals(self) -> dict[str, int]:
        async with control_of(self.federation.address) as control:
            return dict((await control.GetStatus(pb.GetStatusRequest())).refusals)

    async def finish(self) -> None:
        """Lets the clients rejoin and finish the run; waits for the server's exit."""
        ended = await asyncio.gather(*(client.run() for client in self.clients))
        assert {end.outcome for end in ended} == {pb.RUN_OUTCOME_FINISHED}
        await exits(self.server, 0)


@asynccontextmanager
async def fuzzed_server(
    running: Federation, run: Sequence[object] = RUN, kind: type[LightClient] = LightClient
) -> AsyncIterator[FuzzedServer]:
    """Round 0 is done, all have reported on round 1, and every eighth client has uploaded to it."""
    server = await start_server(running, *run, forked=False)  # its memory is measured
    connections = [Connection(running.address, used_features=features_used_by(number)) for number in range(CLIENTS)]
    clients = [kind(number, connection) for number, connection in enumerate(connections)]
    try:
        configs = [await client.join() for client in clients]
        for number in (0, 1):
            await round_open(running.address, number)
            for client, connection in zip(clients, connections, strict=True):
                await _do(client, connection, number, upload=number == 0 or client.client_id % 8 == 7)
        described = await connections[0].get_run()
        open_round = OpenRound(
            run_id=described.run_id,
            round=1,
            sessions=[client.session for client in clients],
            contributions=[client.encoded_upload(1) for client in clients],
            classes=configs[0].classes,
        )
        yield FuzzedServer(running, server, open_round, clients)
    finally:
        for connection in connections:
            await connection.close()


async def _do(client: LightClient, connection: Connection, number: int, *, upload: bool) -> None:
    """As in a run without malformed calls, of which the outcome has the size of the event that brought the state."""
    received = await client.state_of(await _opened(connection, client.session, number), number)
    contribution = client.encoded_upload(number)
    size = sum(part.ByteSize() for part in upload_parts(client.session, number, contribution))
    await client.report(number, bytes_down=received.message_bytes, bytes_up=size)
    if upload:
        await client.upload(number, contribution)


async def _opened(connection: Connection, session: str, number: int) -> pb.RoundEvent:
    async with aclosing(connection.follow(session)) as events:  # type: ignore[type-var]
        async for event in events:
            if event.WhichOneof("event") == "round_opened" and event.round_opened.round == number:
                return event
    raise AssertionError(f"the events ended before round {number} was open")


@dataclass
class Tally:
    """Results of a series of malformed calls."""

    calls: int = 0
    answers: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Number of answers by method, status and reason."""
    violations: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    """Resident bytes of the server, sampled between calls."""
    seconds: float = 0.0

    def note(self, call: RawCall, answer: RawAnswer, seed: object) -> None:
        self.calls += 1
        self.answers[call.method, answer.code.name, answer.reason] += 1
        found = violation(call, answer)
        if found is not None:
            shown = " ".join(message[:200].hex() for message in call.messages[:4])
            self.violations.append(f"{call.method} ({call.what}; {seed}): {found}; messages: {shown}")

    def table(self) -> str:
        lines = [f"{'status':<21}{'reason':<18}{'calls':>8}  methods"]
        grouped: dict[tuple[str, str], Counter[str]] = {}
        for (method, code, reason), count in self.answers.items():
            grouped.setdefault((code, reason), Counter())[method] += count
        for (code, reason), methods in sorted(grouped.items(), key=lambda item: -item[1].total()):
            shown = ", ".join(f"{method} {count}" for method, count in methods.most_common())
            lines.append(f"{code:<21}{reason or '-':<18}{methods.total():>8}  {shown}")
        lines.append(f"{'all':<39}{self.calls:>8}  in {self.seconds:.0f}s, {self.calls / self.seconds:.0f} calls/s")
        megabytes = [size / 1e6 for size in self.memory]
        lines.append(f"server memory: {megabytes[0]:.1f} MB before, at most {max(megabytes):.1f} MB")
        return "\n".join(lines)


async def send_malformed_calls(target: FuzzedServer, *, calls: int, seed: int, show: bool = False) -> Tally:
    """Makes malformed calls in the name of all clients concurrently, each client's drawn from its own seed."""
    tally = Tally(memory=[resident_bytes(target.pid)])
    channels = [RawChannel(target.federation.address) for _ in range(4)]
    started = time.monotonic()
    every = max(calls // 200, 50)

    async def send(client: int) -> None:
        stream = malformed_calls(target.open_round, client, Random(f"{seed}/{client}"))
        for number, call in enumerate(stream):
            if tally.calls >= calls or len(tally.violations) >= _MOST_VIOLATIONS:
                return
            tally.note(call, await channels[client % 4].ask(call), f"seed {seed}/{client}, call {number}")
            if tally.calls % every == 0:
                tally.memory.append(resident_bytes(target.pid))
            if show and tally.calls % (calls // 10) == 0:
                print(f"{tally.calls:>8} calls, {time.monotonic() - started:.0f}s", flush=True)

    try:
        await asyncio.gather(*map(send, range(CLIENTS)))
    finally:
        for channel in channels:
            await channel.close()
    tally.seconds = time.monotonic() - started
    tally.memory.append(resident_bytes(target.pid))
    return tally
