"""Requests that are no messages are refused like any other mistake; gRPC would answer UNKNOWN and log a traceback."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from feddbp.v1 import federation_pb2 as pb
from feddbp_server.answering import Context, refuse_call
from feddbp_server.coordinator import Coordinator
from feddbp_server.refusals import RefusedError

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class Undecodable:
    """Takes the place of a request that is none."""

    def __init__(self, error: DecodeError) -> None:
        self._error = error

    def refusal(self) -> RefusedError:
        return RefusedError(
            pb.REFUSAL_REASON_INVALID_REQUEST, f"the request is not a message: {self._error}", field="request"
        )


class DecodingGuard(grpc.aio.ServerInterceptor):
    """Stands before every service of the server."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None:  # no such method: gRPC says so itself
            return handler
        decode, encode = handler.request_deserializer, handler.response_serializer
        call = handler_call_details.method.rpartition("/")[2]
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(self._unary(call, handler.unary_unary), _safe(decode), encode)
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(self._stream(call, handler.unary_stream), _safe(decode), encode)
        if handler.stream_unary is not None:
            return grpc.stream_unary_rpc_method_handler(_of_decoded(handler.stream_unary), _safe(decode), encode)
        return handler

    def _unary(self, call: str, method: Any) -> Any:
        async def guarded(request: Any, context: Context) -> Any:
            await self._check(call, request, context)
            return await method(request, context)

        return guarded

    def _stream(self, call: str, method: Any) -> Any:
        if not inspect.isasyncgenfunction(method):  # it writes its answers itself
            return self._unary(call, method)

        async def guarded(request: Any, context: Context) -> AsyncIterator[Any]:
            await self._check(call, request, context)
            async for response in method(request, context):
                yield response

        return guarded

    async def _check(self, call: str, request: object, context: Context) -> None:
        if isinstance(request, Undecodable):
            await refuse_call(self._coordinator, call, request.refusal(), request, context)


def _safe(decode: Any) -> Any:
    def decoded(data: bytes) -> Any:
        try:
            return decode(data)
        except DecodeError as error:
            return Undecodable(error)

    return decoded


def _of_decoded(method: Any) -> Any:
    """The method itself refuses what the stream brings: it knows whose it is."""

    async def parts(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in requests:
            if isinstance(request, Undecodable):
                raise request.refusal()
            yield request

    async def guarded(requests: AsyncIterator[Any], context: Context) -> Any:
        return await method(parts(requests), context)

    return guarded
