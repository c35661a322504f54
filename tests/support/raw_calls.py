"""Calls as raw bytes, decodable or not, and their answers: what a hostile program could put on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

import grpc

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.rpc.failures import refusal_in

HalfOpen: TypeAlias = "grpc.aio.StreamUnaryCall[bytes, bytes]"
ANSWER_WITHIN = 60.0
"""Seconds after which a call without an answer counts as hung."""


class Shape(Enum):
    """Which side of a call is a stream."""

    UNARY = "unary_unary"
    ANSWERS = "unary_stream"
    REQUESTS = "stream_unary"


METHODS = {
    **dict.fromkeys(("GetRun", "Join", "AdvanceSum", "Report", "Leave"), ("Federation", Shape.UNARY)),
    **dict.fromkeys(("Follow", "Download"), ("Federation", Shape.ANSWERS)),
    "Upload": ("Federation", Shape.REQUESTS),
    **dict.fromkeys(("GetStatus", "Pause", "Resume", "Stop"), ("Control", Shape.UNARY)),
    **dict.fromkeys(("WatchStatus", "WatchRun", "GetPrototypes", "GetClientPrototypes"), ("Control", Shape.ANSWERS)),
}


@dataclass(frozen=True, kw_only=True)
class RawCall:
    """One call: its method and the bytes of its messages."""

    method: str
    messages: Sequence[bytes]
    what: str = ""
    """What is wrong with it, for messages of failed tests."""
    metadata: tuple[tuple[str, str], ...] = field(default=())


@dataclass(frozen=True, kw_only=True)
class RawAnswer:
    """Status and first message of an answer."""

    code: grpc.StatusCode
    details: str = ""
    refusal: pb.Refusal | None = None
    message: bytes = b""
    """The first message, if there was one."""

    @property
    def reason(self) -> str:
        if self.refusal is None:
            return ""
        return pb.RefusalReason.Name(self.refusal.reason).removeprefix("REFUSAL_REASON_").lower()


class RawChannel:
    """A channel that sends any bytes to any method."""

    def __init__(
        self,
        address: str,
        *,
        compression: grpc.Compression | None = None,
        options: Sequence[tuple[str, int]] = (),
    ) -> None:
        # a connection of its own, not one shared with other channels to the same address
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1), *options]
        self._channel = grpc.aio.insecure_channel(address, options=options, compression=compression)
        self._methods = {name: self._generic(name) for name in METHODS}

    def _generic(self, name: str, shape: Shape | None = None) -> Any:
        service, usual = METHODS[name]
        make = getattr(self._channel, (shape or usual).value)
        return make(f"/feddbp.v1.{service}/{name}", _as_it_is, _as_it_is)

    async def ask(self, call: RawCall) -> RawAnswer:
        """Makes the call and waits for its status, or for the first message of a stream of answers."""
        _, shape = METHODS[call.method]
        options = {"timeout": ANSWER_WITHIN, "metadata": call.metadata}
        try:
            if shape is Shape.REQUESTS:
                message = await self._methods[call.method](iter(call.messages), **options)
            elif shape is Shape.UNARY:
                message = await self._methods[call.method](call.messages[0], **options)
            else:
                message = await self._first(self._methods[call.method](call.messages[0], **options))
        except grpc.aio.AioRpcError as error:
            return RawAnswer(code=error.code(), details=error.details() or "", refusal=refusal_in(error))
        return RawAnswer(code=grpc.StatusCode.OK, message=message)

    def open_upload(self, *messages: bytes) -> HalfOpen:
        """Starts an upload that sends these messages and then stalls."""
        return self.open_half("Upload", *messages)

    def upload_of(self, messages: AsyncIterator[bytes]) -> HalfOpen:
        """Starts an upload of messages that come one by one from an iterator."""
        call: HalfOpen = self._methods["Upload"](messages)
        return call

    def open_half(self, method: str, *messages: bytes) -> HalfOpen:
        """Starts a call of any method that never closes its sending side."""

        async def endless() -> AsyncIterator[bytes]:
            for message in messages:
                yield message
            await asyncio.Event().wait()

        call: HalfOpen = self._generic(method, Shape.REQUESTS)(endless())
        return call

    def open_answers(
        self, method: str, message: bytes, metadata: tuple[tuple[str, str], ...] = ()
    ) -> grpc.aio.UnaryStreamCall[bytes, bytes]:
        """Starts a call whose answers the caller reads, or not."""
        call: grpc.aio.UnaryStreamCall[bytes, bytes] = self._methods[method](message, metadata=metadata)
        return call

    async def close(self) -> None:
        await self._channel.close()

    @staticmethod
    async def _first(stream: Any) -> bytes:
        try:
            async for message in stream:
                return bytes(message)
        finally:
            stream.cancel()
        return b""


def serialised(messages: Iterable[Any]) -> list[bytes]:
    return [message.SerializeToString() for message in messages]


def _as_it_is(data: bytes) -> bytes:
    return data
