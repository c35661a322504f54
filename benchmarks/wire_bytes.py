"""Bytes of messages, relative to the bytes of their tensors, for uploads and downloads."""

from __future__ import annotations

import asyncio

from benchmarks import bars
from benchmarks.light_client import LightClient
from benchmarks.measurement import Measurement
from benchmarks.servers import running_server
from benchmarks.waiting import download_once_open
from feddbp_client.daemon.connection import Connection
from feddbp_client.daemon.transfers import upload_parts


async def _ratios(address: str) -> tuple[float, float]:
    connection = Connection(address)
    client = LightClient(0, connection)
    await client.join()
    contribution = client.encoded_upload(0)
    sent = sum(part.ByteSize() for part in upload_parts(client.session, 0, contribution))
    await client.upload(0, contribution)
    received = await download_once_open(client, 1)
    await connection.close()
    return (
        sent / contribution.manifest.total_bytes,
        received.message_bytes / received.encoded.manifest.total_bytes,
    )


def measure() -> list[Measurement]:
    with running_server("--dataset", "cifar100", "--clients", 1, "--rounds", 2) as server:
        up, down = asyncio.run(_ratios(server.address))
    question = "bytes of messages against bytes of tensors, C=100"
    return [
        Measurement(question=f"{question}, upload", value=up, bar=bars.WIRE_BYTES),
        Measurement(question=f"{question}, download", value=down, bar=bars.WIRE_BYTES),
    ]
