"""Calls to the server: typed answers in, two kinds of trouble out - away for now, or refused."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import grpc

from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_common.errors import ExitCode, FedDBPError, PayloadError
from feddbp_common.faults import reach
from feddbp_common.refusals import refusal_in
from feddbp_common.tls import Access, client_subject
from feddbp_common.version import VERSION
from feddbp_common.wire import (
    BodyAssembler,
    Encoded,
    PayloadRules,
    check_manifest,
    check_values,
    chunked,
    decode,
    digest_of,
)

MAX_DOWNLOAD_BYTES: Final = 256 << 20
_CALL_SECONDS: Final = 30.0
_IDLE_SECONDS: Final = 60.0
_AWAY: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
)


class ServerAwayError(FedDBPError):
    """The server does not answer, or not for now."""

    exit_code = ExitCode.UNREACHABLE


class RefusedError(FedDBPError):
    """The server answered, and the answer is no."""

    exit_code = ExitCode.REFUSED

    def __init__(self, message: str, refusal: pb.Refusal) -> None:
        super().__init__(message)
        self.reason = refusal.reason
        self.field = refusal.field


@dataclass(frozen=True, kw_only=True)
class Download:
    """What the server sent, and how many bytes of messages it took."""

    encoded: Encoded
    message_bytes: int


class Connection:
    """A channel to one server, under one client's name."""

    def __init__(self, address: str, *, client_id: int = 0, access: Access = Access()) -> None:  # noqa: B008 - frozen
        self.address = address
        self._channel = access.channel(address, client_subject(client_id), _CHANNEL_OPTIONS)
        self._metadata = access.metadata()
        self._stub: pb_grpc.FederationAsyncStub = pb_grpc.FederationStub(self._channel)

    async def close(self) -> None:
        await self._channel.close()

    async def get_run(self) -> pb.GetRunResponse:
        with self._translated():
            return await self._stub.GetRun(
                pb.GetRunRequest(software_version=VERSION), timeout=_CALL_SECONDS, metadata=self._metadata
            )

    async def join(self, request: pb.JoinRequest) -> pb.JoinResponse:
        with self._translated():
            return await self._stub.Join(request, timeout=_CALL_SECONDS, metadata=self._metadata)

    async def follow(self, session: str) -> AsyncIterator[pb.RoundEvent]:
        with self._translated():
            async for event in self._stub.Follow(pb.FollowRequest(session=session), metadata=self._metadata):
                yield event

    async def download(self, session: str, round_number: int, rules: PayloadRules) -> Download:
        with self._translated():
            parts = self._stub.Download(
                pb.DownloadRequest(session=session, round=round_number),
                timeout=_IDLE_SECONDS * 10,
                metadata=self._metadata,
            )
            return await _receive(parts, rules)

    async def upload(self, session: str, round_number: int, encoded: Encoded) -> pb.UploadReceipt:
        with self._translated():
            return await self._stub.Upload(
                _sent(upload_parts(session, round_number, encoded)), timeout=_IDLE_SECONDS * 10, metadata=self._metadata
            )

    async def report(self, request: pb.ReportRequest) -> None:
        with self._translated():
            await self._stub.Report(request, timeout=_CALL_SECONDS, metadata=self._metadata)

    async def leave(self, session: str, reason: str) -> None:
        with self._translated():
            await self._stub.Leave(
                pb.LeaveRequest(session=session, reason=reason), timeout=_CALL_SECONDS, metadata=self._metadata
            )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            refusal = refusal_in(error)
            if refusal is not None and refusal.reason != pb.REFUSAL_REASON_BUSY:
                raise RefusedError(error.details() or "refused without a reason", refusal) from None
            if error.code() in _AWAY or refusal is not None:
                # gRPC's text is a chain of causes; the last one is what a person can do something about
                cause = (error.details() or error.code().name).rpartition(": ")[2]
                raise ServerAwayError(f"the server at {self.address} does not answer ({cause})") from None
            raise RefusedError(f"{error.code().name}: {error.details()}", pb.Refusal()) from None


def upload_parts(session: str, round_number: int, encoded: Encoded) -> Iterator[pb.UploadPart]:
    yield pb.UploadPart(header=pb.UploadHeader(session=session, round=round_number, manifest=encoded.manifest))
    for piece in chunked(encoded.segments):
        yield pb.UploadPart(chunk=pb.Chunk(data=piece))


def _sent(parts: Iterator[pb.UploadPart]) -> Iterator[pb.UploadPart]:
    yield next(parts)
    reach("client.upload.sending")
    yield from parts


async def _receive(parts: AsyncIterable[pb.DownloadPart], rules: PayloadRules) -> Download:
    """Checks what the server sends as strictly as the server checks clients."""
    manifest: pb.Manifest | None = None
    assembler = BodyAssembler(0)
    message_bytes = 0
    async for part in parts:
        message_bytes += part.ByteSize()
        if manifest is None:
            manifest = part.manifest
            check_manifest(manifest, rules, max_bytes=MAX_DOWNLOAD_BYTES)
            assembler = BodyAssembler(manifest.total_bytes)
            reach("client.download.receiving")
        else:
            assembler.add(part.chunk.data)
    if manifest is None:
        raise PayloadError("manifest", "the server's download is empty")
    body = assembler.body()
    if digest_of(manifest, [body]) != manifest.sha256:
        raise PayloadError("sha256", "the download was damaged on its way")
    check_values(decode(manifest, body), rules)
    return Download(encoded=Encoded(manifest=manifest, segments=(memoryview(body),)), message_bytes=message_bytes)


_CHANNEL_OPTIONS: Final = [
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # our own backoff decides when to try again; the channel's must not outlast it
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]
