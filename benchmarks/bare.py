"""A bare grpc.aio server and client that move the bytes of a round and keep nothing: what every round is compared with.

A round is an `Upload` of prototypes and Fisher scores by every client, one average over the prototypes, and a
`Download` of it, which waits for the last upload. There are no sessions, checks, digests, reports and files.

`python -m benchmarks.bare CLIENTS CERTS` serves; CERTS is a directory made by `feddbp certs`, or `-`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import numpy as np

from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_common.rpc.credentials import CertificateDirectory
from feddbp_common.wire import Encoded, chunked


class BareService(pb_grpc.FederationServicer):
    """Averages the first half of every body and sends the average to everybody."""

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self._uploads: list[bytes] = []
        self._average = b""
        self._round = 0
        self._closed = asyncio.Event()

    async def Upload(self, request_iterator: AsyncIterator[pb.UploadPart], context: object) -> pb.UploadReceipt:
        pieces = [part.chunk.data async for part in request_iterator if part.HasField("chunk")]
        self._uploads.append(b"".join(pieces))
        if len(self._uploads) == self._clients:
            self._close_round()
        return pb.UploadReceipt()

    def _close_round(self) -> None:
        total = np.zeros(len(self._uploads[0]) // 8, dtype=np.float64)
        for body in self._uploads:
            total += np.frombuffer(body, dtype=np.float32, count=len(total))
        self._average = (total / self._clients).astype(np.float32).tobytes()
        self._uploads.clear()
        self._round += 1
        self._closed.set()
        self._closed = asyncio.Event()

    async def Download(self, request: pb.DownloadRequest, context: object) -> AsyncIterator[pb.DownloadPart]:
        while self._round < request.round:
            await self._closed.wait()
        for piece in chunked([memoryview(self._average)]):
            yield pb.DownloadPart(chunk=pb.Chunk(data=piece))


class BareClient:
    """Uploads the same body in every round and reads the average."""

    def __init__(self, channel: grpc.aio.Channel, encoded: Encoded) -> None:
        self._stub: pb_grpc.FederationAsyncStub = pb_grpc.FederationStub(channel)
        self._encoded = encoded
        self._round = 0

    async def do_round(self) -> None:
        self._round += 1
        await self._stub.Upload(self._parts())
        async for _ in self._stub.Download(pb.DownloadRequest(round=self._round)):
            pass

    async def _parts(self) -> AsyncIterator[pb.UploadPart]:
        for piece in chunked(self._encoded.segments):
            yield pb.UploadPart(chunk=pb.Chunk(data=piece))


async def _serve(clients: int, certs: Path | None) -> None:
    server = grpc.aio.server()
    pb_grpc.add_FederationServicer_to_server(BareService(clients), server)  # type: ignore[abstract]  # in the stub only
    if certs is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        credentials = CertificateDirectory(certs).server_credentials(clients_have_certificates=True)
        port = server.add_secure_port("127.0.0.1:0", credentials)
    print(port, flush=True)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), None if sys.argv[2] == "-" else Path(sys.argv[2])))
