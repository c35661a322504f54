"""Stands before every service: a request that is no message is refused, and one that does not come is not waited for.

gRPC itself would answer the one with UNKNOWN and a traceback in the log, and wait for the other for ever. So that the
wait can be bounded, calls with a single request are served as streams of one: on the wire there is no difference.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from feddbp.v1 import federation_pb2 as pb
from feddbp_server.rpc.status_codes import Context, refuse_call
from feddbp_server.run.coordinator import Coordinator
from feddbp_server.run.refusals import RefusedError

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class Undecodable:
    """Takes the place of a request that is none."""

    def __init__(self, error: DecodeError) -> None:
        self._error = error

    def refusal(self) -> RefusedError:
        return RefusedError(
            pb.REFUSAL_REASON_INVALID_REQUEST, f"the request is not a message: {self._error}", field="request"
        )


class RequestGuard(grpc.aio.ServerInterceptor):
    """Lets requests through that are whole and came in time."""

    def __init__(self, coordinator: Coordinator, *, patience: timedelta) -> None:
        self._coordinator = coordinator
        self._patience = patience

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None:  # no such method: gRPC says so itself
            return handler
        decode, encode = _safe(handler.request_deserializer), handler.response_serializer
        call = handler_call_details.method.rpartition("/")[2]
        if handler.unary_unary is not None:
            return grpc.stream_unary_rpc_method_handler(self._unary(call, handler.unary_unary), decode, encode)
        if handler.unary_stream is not None:
            return grpc.stream_stream_rpc_method_handler(self._stream(call, handler.unary_stream), decode, encode)
        if handler.stream_unary is not None:
            return grpc.stream_unary_rpc_method_handler(_of_decoded(handler.stream_unary), decode, encode)
        return handler

    def _unary(self, call: str, method: Any) -> Any:
        async def guarded(requests: AsyncIterator[Any], context: Context) -> Any:
            return await method(await self._only(requests, call, context), context)

        return guarded

    def _stream(self, call: str, method: Any) -> Any:
        if not inspect.isasyncgenfunction(method):  # it writes its answers itself
            return self._unary(call, method)

        async def guarded(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
            async for response in method(await self._only(requests, call, context), context):
                yield response

        return guarded

    async def _only(self, requests: AsyncIterator[Any], call: str, context: Context) -> Any:
        try:
            return await self._next(requests)
        except RefusedError as refusal:
            await refuse_call(self._coordinator, call, refusal, None, context)

    async def _next(self, requests: AsyncIterator[Any]) -> Any:
        try:
            async with asyncio.timeout(self._patience.total_seconds()):
                request = await anext(requests, None)
        except TimeoutError:
            seconds = self._patience.total_seconds()
            raise RefusedError(pb.REFUSAL_REASON_BUSY, f"no request arrived for {seconds:g}s") from None
        if request is None:
            raise RefusedError(pb.REFUSAL_REASON_INVALID_REQUEST, "there is no request in the call", field="request")
        if isinstance(request, Undecodable):
            raise request.refusal()
        return request


def _safe(decode: Any) -> Any:
    def decoded(data: bytes) -> Any:
        try:
            return decode(data)
        except DecodeError as error:
            return Undecodable(error)

    return decoded


def _of_decoded(method: Any) -> Any:
    """The method itself waits for what the stream brings, and refuses it: it knows whose it is."""

    async def parts(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in requests:
            if isinstance(request, Undecodable):
                raise request.refusal()
            yield request

    async def guarded(requests: AsyncIterator[Any], context: Context) -> Any:
        return await method(parts(requests), context)

    return guarded
