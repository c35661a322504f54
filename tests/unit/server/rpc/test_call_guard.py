"""The guard before every call: what it decodes, how long it waits for a reader, and whom a refusal is counted for."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import grpc
import pytest
from coordinator_runs import Daemon, Server, join_request
from raw_calls import RawCall, RawChannel
from server_state import resident_bytes

from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_server.rpc.auth import NoAuth
from feddbp_server.rpc.federation import FederationService
from feddbp_server.rpc.interceptors import CallGuard
from feddbp_server.run.admission.limits import Limits
from feddbp_server.run.admission.refusals import RefusedError

LIMITS = Limits(stalled_wait=timedelta(seconds=0.5))


class Endless(pb_grpc.FederationServicer):
    """Sends without end, and records when its stream was closed; echoes what it decodes."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.decoded: list[Any] = []

    async def Download(self, request: pb.DownloadRequest, context: Any) -> AsyncIterator[pb.DownloadPart]:
        try:
            while True:
                yield pb.DownloadPart(chunk=pb.Chunk(data=bytes(256 << 10)))
        finally:
            self.closed.set()

    async def Join(self, request: pb.JoinRequest, context: Any) -> pb.JoinResponse:
        self.decoded.append(request)
        return pb.JoinResponse()

    async def Report(self, request: pb.ReportRequest, context: Any) -> pb.ReportResponse:
        return pb.ReportResponse()


def endless() -> Endless:
    return Endless()  # type: ignore[abstract]  # in the stub only


@asynccontextmanager
async def serving(server: Server, service: Endless) -> AsyncIterator[str]:
    guard = CallGuard(server.engine.event_log, limits=LIMITS, identity=NoAuth(), classes=10)
    listener = grpc.aio.server(interceptors=[guard])
    pb_grpc.add_FederationServicer_to_server(service, listener)
    port = listener.add_insecure_port("127.0.0.1:0")
    await listener.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await listener.stop(grace=None)


async def test_a_stream_that_nobody_reads_is_closed(server: Server) -> None:
    service = endless()
    async with serving(server, service) as address:
        channel = RawChannel(address, options=[("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16 << 10)])
        call = channel.open_answers("Download", b"")
        await call.read()
        async with asyncio.timeout(60):
            await service.closed.wait()
        with suppress(grpc.aio.AioRpcError):
            call.cancel()
        await channel.close()


class HungUp:
    """The context of a call whose caller has gone, before the call is cancelled: nothing can be sent."""

    async def write(self, message: object) -> None:
        raise grpc.aio.InternalError

    async def abort(self, *_: object, **__: object) -> None:
        raise grpc.aio.InternalError

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


async def one_request() -> AsyncIterator[pb.DownloadRequest]:
    yield pb.DownloadRequest()


@pytest.mark.parametrize("sends", [True, False], ids=["while it is sent to", "while it is refused"])
async def test_a_caller_that_hangs_up_is_no_failure(
    sends: bool, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """It filled the log with tracebacks, and its incidents displaced all others."""

    async def download(request: pb.DownloadRequest, context: Any) -> AsyncIterator[pb.DownloadPart]:
        if not sends:
            raise RefusedError(pb.REFUSAL_REASON_BUSY, "too many downloads")
        yield pb.DownloadPart()

    guard = CallGuard(server.engine.event_log, limits=LIMITS, identity=NoAuth(), classes=10)
    with pytest.raises(asyncio.CancelledError):
        await guard._stream("Download", download)(one_request(), HungUp())
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
    assert all("failed" not in incident.message for incident in server.engine.event_log.incidents)


async def test_a_stream_that_is_read_goes_on(server: Server) -> None:
    service = endless()
    async with serving(server, service) as address:
        channel = RawChannel(address)
        call = channel.open_answers("Download", b"")
        for _ in range(50):
            assert len(await call.read()) > 256 << 10  # type: ignore[arg-type]
        assert not service.closed.is_set()
        call.cancel()
        await channel.close()


async def test_unknown_fields_are_gone_at_every_depth(server: Server) -> None:
    service = endless()
    stray = b"\xfa\x3e\x03abc"
    nested = pb.Capabilities(device="cpu").SerializeToString() + stray
    async with serving(server, service) as address:
        channel = RawChannel(address)
        await channel.ask(RawCall(method="Join", messages=[b"\x2a" + bytes([len(nested)]) + nested + stray]))
        await channel.close()
    (request,) = service.decoded
    assert request == pb.JoinRequest(capabilities=pb.Capabilities(device="cpu"))
    assert b"abc" not in request.SerializeToString()


@pytest.mark.parametrize(
    ("method", "most"),
    [("Join", LIMITS.request_bytes + 10 * LIMITS.bytes_per_class), ("Report", LIMITS.report_bytes)],
)
async def test_a_request_is_bounded_by_what_it_can_honestly_hold(method: str, most: int, server: Server) -> None:
    async with serving(server, endless()) as address:
        channel = RawChannel(address)
        for size, code in ((most, grpc.StatusCode.OK), (most + 1, grpc.StatusCode.RESOURCE_EXHAUSTED)):
            text = b"x" * (size - 4)
            message = b"\x0a" + _varint(len(text)) + text  # field 1 of either is a string
            assert len(message) == size
            answer = await channel.ask(RawCall(method=method, messages=[message]))
            assert answer.code is code
        assert answer.reason == "too_large"
        await channel.close()


def _varint(number: int) -> bytes:
    return bytes([number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14])


# --- memory ---


@asynccontextmanager
async def answering(server: Server) -> AsyncIterator[RawChannel]:
    """The real service of a run behind the guard."""
    guard = CallGuard(server.engine.event_log, limits=LIMITS, identity=NoAuth(), classes=10)
    listener = grpc.aio.server(interceptors=[guard])
    service = FederationService(server.coordinator, identity=NoAuth(), uploads=server.uploads)
    pb_grpc.add_FederationServicer_to_server(service, listener)
    port = listener.add_insecure_port("127.0.0.1:0")
    await listener.start()
    channel = RawChannel(f"127.0.0.1:{port}")
    try:
        yield channel
    finally:
        await channel.close()
        await listener.stop(grace=None)


async def test_a_refused_call_leaves_no_frames_to_the_garbage_collector(server: Server) -> None:
    """It runs rarely: in a flood of refused joins they took hundreds of megabytes until then."""
    await Daemon.join(server, 0)
    join = join_request(server.coordinator, 0).SerializeToString()
    report = pb.ReportRequest(session="none", progress=pb.Progress()).SerializeToString()
    async with answering(server) as channel:
        gc.collect()
        gc.disable()
        try:
            for method, message in (("Join", join), ("Report", report), ("Download", b""), ("Follow", b"")):
                for _ in range(5):
                    answer = await channel.ask(RawCall(method=method, messages=[message]))
                    assert answer.refusal is not None
            left = [each for each in gc.get_objects() if isinstance(each, RefusedError | grpc.aio.AbortError)]
        finally:
            gc.enable()
    assert all(each.__traceback__ is None and each.__context__ is None for each in left)


async def test_a_request_takes_no_memory_for_its_unknown_fields(server: Server) -> None:
    """A message keeps the memory it was decoded into, and so would the session of a client."""
    service = endless()
    stray = b"\xfa\x3e" + _varint(60_000) + bytes(60_000)
    message = pb.JoinRequest(run_id="run").SerializeToString() + stray
    before = resident_bytes(os.getpid())
    async with serving(server, service) as address:
        channel = RawChannel(address)
        for _ in range(1_000):
            await channel.ask(RawCall(method="Join", messages=[message]))
        await channel.close()
    assert service.decoded == [pb.JoinRequest(run_id="run")] * 1_000
    assert resident_bytes(os.getpid()) - before < 30e6
