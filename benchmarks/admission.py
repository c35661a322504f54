"""The price of waiting for admission: an upload whose body follows the server's answer to its header, or the header."""

from __future__ import annotations

import asyncio
import time
from statistics import median

from benchmarks.light_client import LightClient
from benchmarks.measurement import Measurement
from benchmarks.servers import running_server
from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.connection import Connection
from feddbp_common.wire import Encoded

ROUNDS = 200


class _SwitchedConnection(Connection):
    """A connection whose uploads wait for admission or, as those of 0.1.0, do not."""

    waits = True

    @property
    def awaits_admission(self) -> bool:
        return self.waits


class _AlternatingClient(LightClient):
    def __init__(self, connection: _SwitchedConnection) -> None:
        super().__init__(0, connection)
        self._switched = connection
        self.seconds: dict[bool, list[float]] = {True: [], False: []}

    async def upload(
        self, round_number: int, encoded: Encoded, metrics: pb.RoundMetrics | None = None
    ) -> pb.UploadReceipt:
        self._switched.waits = round_number % 2 == 0
        started = time.perf_counter()
        receipt = await super().upload(round_number, encoded, metrics)
        self.seconds[self._switched.waits].append(time.perf_counter() - started)
        return receipt


async def _run(address: str) -> dict[bool, list[float]]:
    connection = _SwitchedConnection(address)
    client = _AlternatingClient(connection)
    await client.run()
    await connection.close()
    return client.seconds


def measure() -> list[Measurement]:
    with running_server("--clients", 1, "--rounds", ROUNDS, "--dataset", "cifar100") as server:
        seconds = asyncio.run(_run(server.address))
    pairs = list(zip(seconds[True], seconds[False], strict=True))
    waiting, at_once = (1000 * median(seconds[waits]) for waits in (True, False))
    return [
        Measurement(
            question="an upload of C=100 that waits for admission against one that does not",
            value=median(waited / sent for waited, sent in pairs),
            bar=1.25,
            detail=f"{waiting:.1f} ms against {at_once:.1f} ms, {len(pairs)} pairs",
        )
    ]
