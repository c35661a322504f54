"""One upload stream, from its header to its receipt. Nothing is buffered that the header did not announce."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.errors import PayloadError
from feddbp_common.fault_injection import fault_point
from feddbp_common.wire import BodyAssembler, Payload, check_manifest, check_values, decode, digest_of
from feddbp_server.run.coordinator import Coordinator
from feddbp_server.run.refusals import RefusedError, as_refusal
from feddbp_server.run.sessions import Client
from feddbp_server.store import StoreError

_CHECK_INLINE_BYTES: Final = 1 << 20
"""Bodies up to this size are checked on the event loop: a thread would cost more than the check."""
_LOSS_SECONDS: Final = 0.02
"""A connection that was lost ends a stream, too; this long after, the call is cancelled and nobody is to blame."""


@dataclass(frozen=True, kw_only=True)
class UploadLimits:
    """How much of the server uploads may take."""

    max_bytes: int = 64 << 20
    """Of one upload."""
    bytes_in_flight: int = 512 << 20
    """Of all uploads that are being received; bounds what they can make the server hold in memory.

    An upload takes up to three times its bytes: as pieces and as their join, or as that and widened to float32.
    """
    header_wait: timedelta = timedelta(seconds=10)
    """For the header: until it is here, nobody knows who is calling."""
    idle: timedelta = timedelta(seconds=30)
    """Between two chunks."""


class _Arriving:
    """An upload that is being received; it can be given up while it waits for its next part."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._wait: asyncio.Timeout | None = None
        self._given_up = False

    def give_up(self) -> None:
        self._given_up = True
        if self._wait is not None:
            self._wait.reschedule(asyncio.get_running_loop().time())

    async def next_of(self, parts: AsyncIterator[pb.UploadPart], patience: timedelta) -> pb.UploadPart | None:
        try:
            async with asyncio.timeout(0 if self._given_up else patience.total_seconds()) as self._wait:
                return await anext(parts, None)
        except TimeoutError:
            if not self._given_up:
                raise _stalled(patience) from None
            raise RefusedError(
                pb.REFUSAL_REASON_STALE_SESSION, "this session was superseded while it uploaded"
            ) from None
        finally:
            self._wait = None


class UploadReceiver:
    """Receives uploads, within limits."""

    def __init__(self, coordinator: Coordinator, limits: UploadLimits) -> None:
        self._coordinator = coordinator
        self._limits = limits
        self._bytes_in_flight = 0
        self._arriving: dict[int, _Arriving] = {}

    async def receive(self, parts: AsyncIterator[pb.UploadPart], caller: Callable[[str], Client]) -> pb.UploadReceipt:
        """`caller` finds whose session it is, or refuses."""
        header = await self._header(parts)
        client = caller(header.session)
        try:
            return await self._receive_from(client, header, parts)
        except (PayloadError, StoreError) as error:
            raise as_refusal(error).of(client.client_id) from error
        except RefusedError as error:
            raise error.of(client.client_id) from None

    async def _receive_from(
        self, client: Client, header: pb.UploadHeader, parts: AsyncIterator[pb.UploadPart]
    ) -> pb.UploadReceipt:
        coordinator, manifest = self._coordinator, header.manifest
        earlier = await coordinator.earlier_receipt(client, header.round, manifest.sha256)
        if earlier is not None:
            return earlier
        coordinator.admit_upload(client, header.round)
        check_manifest(
            manifest, coordinator.upload_rules, max_bytes=self._limits.max_bytes, label_counts=client.data.label_counts
        )
        coordinator.aggregator.check_layout(manifest)
        with self._room_for(client, manifest.total_bytes) as arriving:
            body, payload = await self._body(arriving, parts, manifest)
            return await coordinator.accept_upload(client, header.round, manifest, body, payload)

    @contextmanager
    def _room_for(self, client: Client, size: int) -> Iterator[_Arriving]:
        before = self._arriving.get(client.client_id)
        if before is not None and before.client is client:
            raise RefusedError(pb.REFUSAL_REASON_BUSY, f"client {client.client_id} is uploading already")
        if before is not None:
            before.give_up()  # of a session this one has followed: nothing would come of it
        if self._bytes_in_flight + size > self._limits.bytes_in_flight:
            raise RefusedError(pb.REFUSAL_REASON_BUSY, "too many uploads at once; try again in a moment")
        arriving = self._arriving[client.client_id] = _Arriving(client)
        self._bytes_in_flight += size
        try:
            yield arriving
        finally:
            if self._arriving.get(client.client_id) is arriving:
                del self._arriving[client.client_id]
            self._bytes_in_flight -= size

    async def _header(self, parts: AsyncIterator[pb.UploadPart]) -> pb.UploadHeader:
        try:
            async with asyncio.timeout(self._limits.header_wait.total_seconds()):
                first = await anext(parts, None)
        except TimeoutError:
            raise _stalled(self._limits.header_wait) from None
        if first is None or first.WhichOneof("part") != "header":
            raise RefusedError(
                pb.REFUSAL_REASON_INVALID_REQUEST, "an upload has to begin with its header", field="header"
            )
        return first.header

    async def _body(
        self, arriving: _Arriving, parts: AsyncIterator[pb.UploadPart], manifest: pb.Manifest
    ) -> tuple[bytes, Payload]:
        assembler = BodyAssembler(manifest.total_bytes)
        while (part := await arriving.next_of(parts, self._limits.idle)) is not None:
            if part.WhichOneof("part") != "chunk":
                raise PayloadError("chunk", "only chunks may follow the header")
            assembler.add(part.chunk.data)
            fault_point("server.upload.receiving")
        if not assembler.complete:
            await asyncio.sleep(_LOSS_SECONDS)
        body = assembler.body()
        if len(body) <= _CHECK_INLINE_BYTES:
            return body, self._checked(manifest, body)
        return body, await asyncio.to_thread(self._checked, manifest, body)

    def _checked(self, manifest: pb.Manifest, body: bytes) -> Payload:
        if not hmac.compare_digest(digest_of(manifest, [body]), manifest.sha256):
            raise PayloadError("sha256", "does not match what was received")
        payload = decode(manifest, body)
        check_values(payload, self._coordinator.upload_rules, real_type=self._coordinator.config.wire_type)
        return payload


def _stalled(patience: timedelta) -> RefusedError:
    """Not the client's fault as far as one can tell: on a slow network it may try again."""
    return RefusedError(pb.REFUSAL_REASON_BUSY, f"nothing arrived for {patience.total_seconds():g}s", field="chunk")
