"""Sizes of uploads, the decoding of downloads, and errors of calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest

from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_client.daemon.connection import Connection, ServerUnavailableError
from feddbp_client.daemon.reply_checks import InvalidReplyError
from feddbp_client.daemon.transfers import upload_bytes, upload_parts
from feddbp_common.wire import CHUNK_BYTES, Encoded, Payload, PayloadRules, PrototypeRule, PrototypeSet, chunked, encode

REAL_BYTES = 4


def tensor_payload(*sizes: int) -> Payload:
    tensors = {f"tensor {number}": np.zeros(size, dtype=np.float32) for number, size in enumerate(sizes)}
    return Payload(tensors=tensors)


@pytest.mark.parametrize("round_number", [0, 1, 127, 128, 2**31])
@pytest.mark.parametrize("session", ["", "s", "s" * 127, "s" * 128])
@pytest.mark.parametrize(
    "sizes",
    [
        (),
        (0,),
        (1,),
        (31,),
        (CHUNK_BYTES // REAL_BYTES,),
        (CHUNK_BYTES // REAL_BYTES + 1,),
        (3 * CHUNK_BYTES // REAL_BYTES,),
        (100, CHUNK_BYTES, 5),
        tuple(range(200)),
    ],
    ids=str,
)
def test_upload_bytes_is_the_serialised_size_of_all_parts(
    sizes: tuple[int, ...], session: str, round_number: int
) -> None:
    encoded = encode(tensor_payload(*sizes))
    parts = upload_parts(session, round_number, encoded)
    assert upload_bytes(session, round_number, encoded) == sum(len(part.SerializeToString()) for part in parts)


class OneDownload(pb_grpc.FederationServicer):
    """A server that answers every download with the same payload."""

    def __init__(self, payload: Encoded) -> None:
        self._payload = payload

    async def Download(self, request: pb.DownloadRequest, context: Any) -> AsyncIterator[pb.DownloadPart]:
        yield pb.DownloadPart(manifest=self._payload.manifest)
        for piece in chunked(self._payload.segments):
            yield pb.DownloadPart(chunk=pb.Chunk(data=piece))


async def test_a_download_holds_the_decoded_payload_and_the_bytes_it_was_decoded_from() -> None:
    vectors = np.arange(6, dtype=np.float32).reshape(2, 3)
    sent = encode(Payload(prototypes=PrototypeSet(class_ids=np.array([0, 4], dtype=np.int32), vectors=vectors)))
    server = grpc.aio.server()
    pb_grpc.add_FederationServicer_to_server(OneDownload(sent), server)  # type: ignore[abstract]  # in the stub only
    connection = Connection(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    await server.start()
    try:
        download = await connection.download("session", 1, PayloadRules(prototypes=PrototypeRule(classes=5, width=3)))
    finally:
        await connection.close()
        await server.stop(grace=0)
    assert download.payload.prototypes is not None
    np.testing.assert_array_equal(download.payload.prototypes.vectors, vectors)
    assert download.encoded.manifest == sent.manifest
    assert download.encoded.body() == sent.body()


class EndlessDownload(pb_grpc.FederationServicer):
    """A server whose downloads begin with a chunk and do not end by themselves; records when they were cancelled."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    async def Download(self, request: pb.DownloadRequest, context: Any) -> AsyncIterator[pb.DownloadPart]:
        try:
            yield pb.DownloadPart(chunk=pb.Chunk(data=b"no manifest"))
            await asyncio.Event().wait()
        finally:
            self.closed.set()


async def test_a_download_that_is_refused_in_its_middle_is_cancelled() -> None:
    """Its call would stay open, and hold up the closing of the channel."""
    server, service = grpc.aio.server(), EndlessDownload()  # type: ignore[abstract]  # in the stub only
    pb_grpc.add_FederationServicer_to_server(service, server)
    connection = Connection(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    await server.start()
    try:
        with pytest.raises(InvalidReplyError, match="manifest: is missing"):
            await connection.download("session", 1, PayloadRules())
        async with asyncio.timeout(60):
            await service.closed.wait()
    finally:
        await connection.close()
        await server.stop(grace=0)


class CancellingStub:
    """Calls that gRPC cancels, or that never answer."""

    def __init__(self, *, hangs: bool = False) -> None:
        self._hangs = hangs

    async def GetRun(self, *_: object, **__: object) -> pb.GetRunResponse:
        if self._hangs:
            await asyncio.Event().wait()
        raise asyncio.CancelledError


async def test_a_call_that_grpc_cancels_is_a_lost_server() -> None:
    connection = Connection("127.0.0.1:1")
    connection._stub = CancellingStub()  # type: ignore[assignment]
    with pytest.raises(ServerUnavailableError, match=r"the server at 127\.0\.0\.1:1 closed the connection"):
        await connection.get_run()
    await connection.close()


async def test_a_cancelled_caller_stays_cancelled() -> None:
    connection = Connection("127.0.0.1:1")
    connection._stub = CancellingStub(hangs=True)  # type: ignore[assignment]
    calling = asyncio.create_task(connection.get_run())
    await asyncio.sleep(0)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    await connection.close()
