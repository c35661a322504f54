"""Throughput of uploads to the server, relative to a bare grpc.aio client stream of the same bytes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from statistics import median

import grpc

from benchmarks import bars
from benchmarks.light_client import LightClient
from benchmarks.measurement import Measurement
from benchmarks.servers import running_server
from benchmarks.waiting import download_once_open
from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_client.daemon.connection import Connection
from feddbp_common.wire import Encoded

CLIENTS = 16
ROUNDS = 12


class _BareService(pb_grpc.FederationServicer):
    """Reads the stream and discards it; its receipt is what our client expects."""

    async def Upload(self, request_iterator: AsyncIterator[pb.UploadPart], context: object) -> pb.UploadReceipt:
        header = (await anext(request_iterator)).header
        async for _ in request_iterator:
            pass
        return pb.UploadReceipt(round=header.round, sha256=header.manifest.sha256)


async def _serve_bare() -> None:
    server = grpc.aio.server()
    pb_grpc.add_FederationServicer_to_server(_BareService(), server)  # type: ignore[abstract]  # in the stub only
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


async def _timed_uploads(connection: Connection, clients: list[LightClient], number: int, body: Encoded) -> float:
    started = time.perf_counter()
    await asyncio.gather(*(connection.upload(client.session, number, body) for client in clients))
    return time.perf_counter() - started


async def _compare(address: str, bare_address: str) -> tuple[float, float, float]:
    ours, bare = Connection(address), Connection(bare_address)
    clients = [LightClient(number, ours) for number in range(CLIENTS)]
    for client in clients:
        await client.join()
    body = clients[0].encoded_upload(0)
    pairs = []
    for number in range(ROUNDS):
        reference = await _timed_uploads(bare, clients, number, body)
        measured = await _timed_uploads(ours, clients, number, body)
        pairs.append((reference, measured))
        await download_once_open(clients[0], number + 1)
    await ours.close()
    await bare.close()
    megabytes = CLIENTS * body.manifest.total_bytes / 1e6
    warm = pairs[2:]
    return (
        median(reference / measured for reference, measured in warm),
        median(megabytes / measured for _, measured in warm),
        median(megabytes / reference for reference, _ in warm),
    )


def measure() -> list[Measurement]:
    options = ("--clients", CLIENTS, "--min-clients", CLIENTS, "--rounds", ROUNDS + 1, "--dataset", "cifar100")
    bare = subprocess.Popen([sys.executable, "-m", "benchmarks.ingest"], stdout=subprocess.PIPE, text=True)
    try:
        assert bare.stdout is not None
        port = int(bare.stdout.readline())
        with running_server(*options) as server:
            ratio, ours, theirs = asyncio.run(_compare(server.address, f"127.0.0.1:{port}"))
    finally:
        bare.kill()
        bare.wait()
    return [
        Measurement(
            question="ingest of C=100 uploads against a bare grpc.aio client stream",
            value=ratio,
            bar=bars.INGEST,
            at_most=False,
            detail=f"{ours:.0f} MB/s against {theirs:.0f} MB/s, checked and stored against read and discarded",
        )
    ]


if __name__ == "__main__":
    asyncio.run(_serve_bare())
