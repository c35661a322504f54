"""A server in the middle of a round with strangers at its door, and the honest clients that will finish the run."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

from benchmarks.light_client import LightClient
from hostile_calls import Scene, complaint, hostile_calls
from light_runs import control_of, exits, round_open, start_server
from processes import Command, Federation
from raw_calls import RawAnswer, RawCall, RawChannel
from server_state import durable_digest, resident_bytes, run_digest

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.connection import Connection, upload_parts

CLIENTS = 16
RUN = (
    *("--clients", CLIENTS, "--min-clients", CLIENTS, "--rounds", 3, "--round-deadline", 0, "--lease", "1h"),
    *("--dataset", "custom", "--classes", 5, "--feature-dim", 8, "--set", "k_top=2"),
)
_MOST_COMPLAINTS = 20


@dataclass
class Besieged:
    """The run, its honest clients, and what it must still be when the siege is over."""

    federation: Federation
    server: Command
    scene: Scene
    clients: Sequence[LightClient]

    @property
    def pid(self) -> int:
        return self.server.process.pid

    async def digest(self) -> tuple[str, str]:
        """What is on disk, and what the server says of the run."""
        async with control_of(self.federation.address) as control:
            status: pb.RunStatus = await control.GetStatus(pb.GetStatusRequest())
        return durable_digest(self.federation.state_dir), run_digest(status)

    async def refusals(self) -> dict[str, int]:
        async with control_of(self.federation.address) as control:
            return dict((await control.GetStatus(pb.GetStatusRequest())).refusals)

    async def finish(self) -> None:
        """The honest clients come back, do what is left of the run, and the server ends it."""
        ended = await asyncio.gather(*(client.run() for client in self.clients))
        assert {end.outcome for end in ended} == {pb.RUN_OUTCOME_FINISHED}
        await exits(self.server, 0)


@asynccontextmanager
async def besieged(running: Federation) -> AsyncIterator[Besieged]:
    """Round 0 is done, all have reported on round 1, and every eighth client has uploaded to it."""
    server = await start_server(running, *RUN, forked=False)  # its memory is measured
    connections = [Connection(running.address) for _ in range(CLIENTS)]
    clients = [LightClient(number, connection) for number, connection in enumerate(connections)]
    try:
        configs = [await client.join() for client in clients]
        for number in (0, 1):
            await round_open(running.address, number)
            for client in clients:
                await _do(client, number, upload=number == 0 or client.client_id % 8 == 7)
        run = await connections[0].get_run()
        scene = Scene(
            run_id=run.run_id,
            round=1,
            sessions=[client.session for client in clients],
            contributions=[client.encoded_upload(1) for client in clients],
            classes=configs[0].classes,
        )
        yield Besieged(running, server, scene, clients)
    finally:
        for connection in connections:
            await connection.close()


async def _do(client: LightClient, number: int, *, upload: bool) -> None:
    received = await client.download(number)
    contribution = client.encoded_upload(number)
    size = sum(part.ByteSize() for part in upload_parts(client.session, number, contribution))
    await client.report(number, bytes_down=received.message_bytes, bytes_up=size)
    if upload:
        await client.upload(number, contribution)


@dataclass
class Tally:
    """What a siege came to."""

    calls: int = 0
    answers: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """By method, status and reason."""
    complaints: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    """Resident bytes of the server, sampled along the way."""
    seconds: float = 0.0

    def note(self, call: RawCall, answer: RawAnswer, seed: object) -> None:
        self.calls += 1
        self.answers[call.method, answer.code.name, answer.reason] += 1
        wrong = complaint(call, answer)
        if wrong is not None:
            shown = " ".join(message[:200].hex() for message in call.messages[:4])
            self.complaints.append(f"{call.method} ({call.what}; {seed}): {wrong}; messages: {shown}")

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


async def lay_siege(target: Besieged, *, calls: int, seed: int, show: bool = False) -> Tally:
    """So many hostile calls in the names of all clients at once, each client's drawn from a seed of its own."""
    tally = Tally(memory=[resident_bytes(target.pid)])
    channels = [RawChannel(target.federation.address) for _ in range(4)]
    started = time.monotonic()
    every = max(calls // 200, 50)

    async def be_hostile(client: int) -> None:
        stream = hostile_calls(target.scene, client, Random(f"{seed}/{client}"))
        for number, call in enumerate(stream):
            if tally.calls >= calls or len(tally.complaints) >= _MOST_COMPLAINTS:
                return
            tally.note(call, await channels[client % 4].ask(call), f"seed {seed}/{client}, call {number}")
            if tally.calls % every == 0:
                tally.memory.append(resident_bytes(target.pid))
            if show and tally.calls % (calls // 10) == 0:
                print(f"{tally.calls:>8} calls, {time.monotonic() - started:.0f}s", flush=True)

    try:
        await asyncio.gather(*map(be_hostile, range(CLIENTS)))
    finally:
        for channel in channels:
            await channel.close()
    tally.seconds = time.monotonic() - started
    tally.memory.append(resident_bytes(target.pid))
    return tally
