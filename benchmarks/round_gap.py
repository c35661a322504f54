"""Time between rounds: from the last receipt of a round until every client has the next assignment, with its state.

No client begins its next upload before all have theirs: the clients share a process, which would be busy with it.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from statistics import median

from benchmarks import bars
from benchmarks.light_client import SteadyClient
from benchmarks.measurement import Measurement
from benchmarks.servers import running_server
from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.connection import Connection
from feddbp_common.wire import Encoded

CLIENTS = 20
ROUNDS = 40


class _TimedClient(SteadyClient):
    def __init__(self, client_id: int, connection: Connection, receipts: dict[int, list[float]]) -> None:
        super().__init__(client_id, connection)
        self._receipts = receipts

    async def upload(
        self, round_number: int, encoded: Encoded, metrics: pb.RoundMetrics | None = None
    ) -> pb.UploadReceipt:
        receipt = await super().upload(round_number, encoded, metrics)
        self._receipts[round_number].append(time.perf_counter())
        return receipt


async def _gaps(address: str) -> list[float]:
    receipts: dict[int, list[float]] = defaultdict(list)
    assignments: dict[int, list[float]] = defaultdict(list)
    all_have_theirs: dict[int, asyncio.Event] = defaultdict(asyncio.Event)

    async def note(event: pb.RoundEvent) -> None:
        if not event.HasField("round_opened"):
            return
        number = event.round_opened.round
        assignments[number].append(time.perf_counter())
        if len(assignments[number]) == CLIENTS:
            all_have_theirs[number].set()
        await all_have_theirs[number].wait()

    connection = Connection(address)
    clients = [_TimedClient(number, connection, receipts) for number in range(CLIENTS)]
    await asyncio.gather(*(client.run(note) for client in clients))
    await connection.close()
    return [max(assignments[number + 1]) - max(receipts[number]) for number in range(ROUNDS - 1)]


def measure() -> list[Measurement]:
    options = ("--clients", CLIENTS, "--min-clients", CLIENTS, "--rounds", ROUNDS, "--dataset", "cifar100")
    with running_server(*options) as server:
        gaps = asyncio.run(_gaps(server.address))
    return [
        Measurement(
            question="last receipt to every client holding the next assignment, 20 clients, C=100",
            value=1000 * median(gaps),
            bar=bars.ROUND_GAP_MILLISECONDS,
            unit="ms p50",
            detail=f"{ROUNDS - 1} boundaries, worst {1000 * max(gaps):.1f} ms",
        )
    ]
