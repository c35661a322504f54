"""Ten thousand connected clients at C=10 against one server: time to join, rounds, status calls, memory, errors.

`python -m benchmarks.ten_thousand [--clients N] [--rounds N]`. The clients are light ones in a few processes; fifty
share a connection, since a connection carries a limited number of calls at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc
import numpy as np
from rich.console import Console

from benchmarks import bars
from benchmarks.light_client import LightClient
from benchmarks.measurement import Measurement, table_of
from benchmarks.servers import RunningServer, cpu_seconds, peak_bytes, resident_bytes, running_server
from benchmarks.soak import OwnConnection
from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_client.daemon.connection import Connection
from feddbp_common.config.run import RunConfig
from feddbp_common.wire import Encoded

PROCESSES = 2
PER_CONNECTION = 50


class _Client(LightClient):
    """Uploads what all clients of its process upload, and notes when it has joined."""

    payload: Encoded | None = None
    described: pb.GetRunResponse | None = None
    config: RunConfig | None = None
    joined_at: list[float] = []  # noqa: RUF012 - of the process
    joining = asyncio.Semaphore(512)
    """Joins at a time: more than the server takes at once, so that it refuses some with a time to retry."""
    uploading = asyncio.Semaphore(64)
    """Uploads at a time: one process of thousands begins more of them than it can send within the server's limits."""

    async def describe(self) -> pb.GetRunResponse:
        if _Client.described is None:
            _Client.described = await super().describe()
        return _Client.described

    def config_of(self, described: pb.GetRunResponse) -> RunConfig:
        if _Client.config is None:
            _Client.config = super().config_of(described)
        return _Client.config

    async def join(self) -> RunConfig:
        async with self.joining:
            config = await super().join()
        self.joined_at.append(time.time())
        return config

    async def upload(
        self, round_number: int, encoded: Encoded, metrics: pb.RoundMetrics | None = None
    ) -> pb.UploadReceipt:
        async with self.uploading:
            return await super().upload(round_number, encoded, metrics)

    def encoded_upload(self, round_number: int) -> Encoded:
        if _Client.payload is None:
            _Client.payload = super().encoded_upload(0)
        return _Client.payload


async def _run_clients(address: str, ids: range) -> dict[str, object]:
    rounds: list[float] = []

    async def note(event: pb.RoundEvent) -> None:
        if event.HasField("round_opened") or event.HasField("final_evaluation"):
            rounds.append(time.time())

    connections = [Connection(address, credentials=OwnConnection()) for _ in range(0, len(ids), PER_CONNECTION)]
    for connection in connections:
        await connection.get_run()
    clients = [_Client(number, connections[index // PER_CONNECTION]) for index, number in enumerate(ids)]
    running = (client.run_reconnecting(note if client is clients[0] else None) for client in clients)
    ends = await asyncio.gather(*running, return_exceptions=True)
    errors = [repr(end) for end in ends if not isinstance(end, pb.RunEnded) or end.outcome != pb.RUN_OUTCOME_FINISHED]
    return {
        "errors": errors,
        "joins": len(_Client.joined_at),
        "joined_at": max(_Client.joined_at, default=0.0),
        "rounds": rounds,
    }


@dataclass
class Samples:
    """The server, looked at once a second; the last look may be at one that has stopped."""

    status_seconds: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    """In rounds: not while clients join, nor in the final evaluation, which is unlike a round."""
    peak: int = 0
    cpu: float = 0.0

    async def take(self, server: RunningServer) -> None:
        """Asks for the status once a second, as an operator's view does, and samples memory and CPU time."""
        channel = grpc.aio.insecure_channel(server.address, options=[("grpc.max_receive_message_length", -1)])
        stub: pb_grpc.ControlAsyncStub = pb_grpc.ControlStub(channel)
        while True:
            started = time.perf_counter()
            status = await stub.GetStatus(pb.GetStatusRequest())
            self.status_seconds.append(time.perf_counter() - started)
            if status.phase in (pb.PHASE_COLLECTING, pb.PHASE_AGGREGATING):
                self.memory.append(resident_bytes(server.pid))
            self.peak, self.cpu = peak_bytes(server.pid), cpu_seconds(server.pid)
            await asyncio.sleep(1.0)

    def growth(self) -> float:
        """The largest memory of the last third of the rounds against that of the middle: within a round it swings."""
        third = len(self.memory) // 3
        return max(self.memory[-third:]) / max(self.memory[third:-third])


async def _measure(clients: int, rounds: int, classes: int) -> list[Measurement]:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    options = ("--clients", clients, "--min-clients", clients, "--rounds", rounds)
    task = ("--dataset", "custom", "--classes", classes, "--round-deadline", "0", "--log-level", "warning")
    with running_server(*options, *task) as server:
        share, samples = -(-clients // PROCESSES), Samples()
        started = time.time()
        workers = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.ten_thousand", "--as-clients", server.address),
                *(str(first), str(min(first + share, clients))),
                stdout=subprocess.PIPE,
                limit=1 << 24,
            )
            for first in range(0, clients, share)
        ]
        watching = asyncio.create_task(samples.take(server))
        outputs = await asyncio.gather(*(worker.communicate() for worker in workers))
        watching.cancel()
    reports = [json.loads(output) for output, _ in outputs]
    errors = [error for report in reports for error in report["errors"]]
    for error in errors[:5]:
        print(error)
    opened = np.diff(reports[0]["rounds"])
    rounds_text = f"{len(opened)} rounds, median {np.median(opened):.1f} s, p99 {np.quantile(opened, 0.99):.1f} s"
    status = samples.status_seconds
    status_text = f"median {1000 * np.median(status):.0f} ms, p99 {np.quantile(status, 0.99):.2f} s"
    cpu_text = f"{1000 * samples.cpu / clients / (rounds + 1):.2f} ms of server CPU a client and round"
    return [
        Measurement(question=f"{clients} clients: errors", value=len(errors), bar=0, unit="", detail=rounds_text),
        Measurement(
            question=f"{clients} clients: from the start of their processes until all have joined",
            value=max(report["joined_at"] for report in reports) - started,
            bar=bars.JOIN_SECONDS,
            unit="s",
            detail=f"in {PROCESSES} processes, {PER_CONNECTION} clients a connection; {cpu_text}",
        ),
        Measurement(
            question=f"{clients} clients: memory in the last third of the rounds against the middle",
            value=samples.growth(),
            bar=bars.FLAT_MEMORY,
            detail=f"status call {status_text}",
        ),
        Measurement(
            question=f"{clients} clients at C={classes}: peak memory of the server",
            value=samples.peak / 1e6,
            bar=bars.PEAK_MEMORY_MB if (clients, classes) == (1000, 100) else None,
            unit="MB",
        ),
    ]


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ten_thousand", description=__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--as-clients", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.as_clients is not None:
        address, first, last = given.as_clients
        print(json.dumps(asyncio.run(_run_clients(address, range(int(first), int(last))))))
        return 0
    measured = asyncio.run(_measure(given.clients, given.rounds, given.classes))
    Console().print(table_of(measured))
    return 0 if all(measurement.holds for measurement in measured) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
