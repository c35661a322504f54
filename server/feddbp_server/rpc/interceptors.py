"""The guard before every call: decodes its request, bounds the wait for it, and maps its errors to status codes.

gRPC itself would answer an undecodable request with UNKNOWN and a traceback in the log, and wait for a missing one for
ever. So that the wait can be bounded, calls with a single request are served as streams of one: on the wire there is no
difference.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any, NoReturn, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.errors import PayloadError
from feddbp_common.rpc.failures import REFUSAL_METADATA_KEY
from feddbp_server.reporting.event_log import EventLog
from feddbp_server.rpc.auth import Context
from feddbp_server.rpc.status_codes import STATUS_OF
from feddbp_server.run.refusals import RefusedError, as_refusal
from feddbp_server.store import StoreError

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


log = logging.getLogger("feddbp.server")


class _Undecodable:
    """Takes the place of a request that could not be decoded: a deserializer must not raise."""

    def __init__(self, error: DecodeError) -> None:
        self._error = error

    def refusal(self) -> RefusedError:
        return RefusedError(
            pb.REFUSAL_REASON_INVALID_REQUEST, f"the request is not a message: {self._error}", field="request"
        )


class CallGuard(grpc.aio.ServerInterceptor):
    """Owns how calls fail: what cannot be decoded, does not arrive or is refused ends with a status and is logged."""

    def __init__(self, event_log: EventLog, *, request_wait: timedelta) -> None:
        self._event_log = event_log
        self._request_wait = request_wait

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None:  # no such method: gRPC answers this itself
            return handler
        decode, encode = _decoder(handler.request_deserializer), handler.response_serializer
        call = handler_call_details.method.rpartition("/")[2]
        if handler.unary_unary is not None:
            return grpc.stream_unary_rpc_method_handler(self._unary(call, handler.unary_unary), decode, encode)
        if handler.unary_stream is not None:
            return grpc.stream_stream_rpc_method_handler(self._stream(call, handler.unary_stream), decode, encode)
        if handler.stream_unary is not None:
            return grpc.stream_unary_rpc_method_handler(self._upload(call, handler.stream_unary), decode, encode)
        return handler

    def _unary(self, call: str, method: Any) -> Any:
        async def guarded(requests: AsyncIterator[Any], context: Context) -> Any:
            try:
                return await method(await self._only(requests), context)
            except Exception as error:
                await self._fail(call, error, context)

        return guarded

    def _stream(self, call: str, method: Any) -> Any:
        if not inspect.isasyncgenfunction(method):  # it writes its responses itself
            return self._unary(call, method)

        async def guarded(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
            try:
                async for response in method(await self._only(requests), context):
                    yield response
            except Exception as error:
                await self._fail(call, error, context)

        return guarded

    def _upload(self, call: str, method: Any) -> Any:
        """The method itself bounds the wait for each part, and refuses it: it knows whose it is."""

        async def guarded(requests: AsyncIterator[Any], context: Context) -> Any:
            try:
                return await method(_Decoded(requests), context)
            except Exception as error:
                await self._fail(call, error, context)

        return guarded

    async def _only(self, requests: AsyncIterator[Any]) -> Any:
        """The single request of a call."""
        try:
            async with asyncio.timeout(self._request_wait.total_seconds()):
                request = await anext(requests, None)
        except TimeoutError:
            seconds = self._request_wait.total_seconds()
            raise RefusedError(pb.REFUSAL_REASON_BUSY, f"no request arrived for {seconds:g}s") from None
        if request is None:
            raise RefusedError(pb.REFUSAL_REASON_INVALID_REQUEST, "there is no request in the call", field="request")
        if isinstance(request, _Undecodable):
            raise request.refusal()
        return request

    async def _fail(self, call: str, error: Exception, context: Context) -> NoReturn:
        """Ends a call with the status its error stands for, and logs it."""
        if isinstance(error, grpc.aio.AbortError):
            raise error
        if not isinstance(error, RefusedError | PayloadError | StoreError):
            log.error("%s failed", call, exc_info=error)
            self._event_log.incident(None, f"{call} failed: {type(error).__name__}")
            await context.abort(grpc.StatusCode.INTERNAL, f"the server failed to answer {call}; its log says why")
        refusal = as_refusal(error)
        self._event_log.refused(call, refusal, peer=context.peer())
        details: Any = ((REFUSAL_METADATA_KEY, refusal.details.SerializeToString()),)
        await context.abort(STATUS_OF[refusal.details.reason], str(refusal), trailing_metadata=details)


def _decoder(decode: Any) -> Any:
    def decoded(data: bytes) -> Any:
        try:
            return decode(data)
        except DecodeError as error:
            return _Undecodable(error)

    return decoded


class _Decoded:
    """The requests of a stream, which goes on after one that could not be decoded was refused."""

    def __init__(self, requests: AsyncIterator[Any]) -> None:
        self._requests = requests

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        request = await anext(self._requests)
        if isinstance(request, _Undecodable):
            raise request.refusal()
        return request
