"""One upload stream, from its header to its receipt. Nothing is buffered that the header did not announce."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.errors import PayloadError
from feddbp_common.wire import BodyAssembler, check_manifest, check_values, decode, digest_of
from feddbp_server.coordinator import Coordinator
from feddbp_server.refusals import RefusedError, as_refusal
from feddbp_server.sessions import Client

_CHECK_INLINE_BYTES: Final = 1 << 20
"""Bodies up to this size are checked on the event loop: a thread would cost more than the check."""


@dataclass(frozen=True, kw_only=True)
class UploadLimits:
    """How much of the server one upload may take."""

    max_bytes: int = 64 << 20
    idle: timedelta = timedelta(seconds=30)


async def receive_upload(
    parts: AsyncIterator[pb.UploadPart],
    caller: Callable[[str], Client],
    coordinator: Coordinator,
    limits: UploadLimits,
) -> pb.UploadReceipt:
    """`caller` finds whose session it is, or refuses."""
    header = await _header(parts, limits)
    client = caller(header.session)
    earlier = await coordinator.earlier_receipt(client, header.round, header.manifest.sha256)
    if earlier is not None:
        return earlier
    coordinator.admit_upload(client, header.round)
    try:
        body = await _body(parts, header.manifest, client, coordinator, limits)
    except PayloadError as error:
        raise as_refusal(error) from error
    return await coordinator.accept_upload(client, header.round, header.manifest, body)


async def _header(parts: AsyncIterator[pb.UploadPart], limits: UploadLimits) -> pb.UploadHeader:
    first = await _next(parts, limits)
    if first is None or first.WhichOneof("part") != "header":
        raise RefusedError(pb.REFUSAL_REASON_INVALID_REQUEST, "an upload has to begin with its header", field="header")
    return first.header


async def _body(
    parts: AsyncIterator[pb.UploadPart],
    manifest: pb.Manifest,
    client: Client,
    coordinator: Coordinator,
    limits: UploadLimits,
) -> bytes:
    check_manifest(
        manifest, coordinator.upload_rules, max_bytes=limits.max_bytes, label_counts=client.data.label_counts
    )
    assembler = BodyAssembler(manifest.total_bytes)
    while (part := await _next(parts, limits)) is not None:
        if part.WhichOneof("part") != "chunk":
            raise PayloadError("chunk", "only chunks may follow the header")
        assembler.add(part.chunk.data)
    body = assembler.body()
    if len(body) <= _CHECK_INLINE_BYTES:
        _check(manifest, body, coordinator)
    else:
        await asyncio.to_thread(_check, manifest, body, coordinator)
    return body


def _check(manifest: pb.Manifest, body: bytes, coordinator: Coordinator) -> None:
    if not hmac.compare_digest(digest_of(manifest, [body]), manifest.sha256):
        raise PayloadError("sha256", "does not match what was received")
    check_values(decode(manifest, body), coordinator.upload_rules)


async def _next(parts: AsyncIterator[pb.UploadPart], limits: UploadLimits) -> pb.UploadPart | None:
    try:
        return await asyncio.wait_for(anext(parts), timeout=limits.idle.total_seconds())
    except StopAsyncIteration:
        return None
    except TimeoutError:
        raise RefusedError(
            pb.REFUSAL_REASON_INVALID_REQUEST, f"nothing arrived for {limits.idle.total_seconds():g}s", field="chunk"
        ) from None
