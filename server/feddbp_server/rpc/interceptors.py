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
from contextlib import aclosing
from typing import Any, NoReturn, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.errors import PayloadError
from feddbp_common.rpc.failures import REFUSAL_METADATA_KEY
from feddbp_common.wire import chunk_in
from feddbp_server.reporting.event_log import EventLog
from feddbp_server.rpc.auth import Context, Identity
from feddbp_server.rpc.status_codes import STATUS_OF
from feddbp_server.run.admission.limits import Limits
from feddbp_server.run.admission.refusals import RefusedError, as_refusal
from feddbp_server.store import StoreError

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


log = logging.getLogger("feddbp.server")

_GONE = "the caller has hung up"
"""A write to such a call fails in gRPC's core, sometimes before the call is cancelled: the server has not failed."""


class _Undecodable:
    """Takes the place of a request that was not decoded: a deserializer must not raise."""

    def __init__(self, refusal: RefusedError) -> None:
        self.refusal = refusal


class CallGuard(grpc.aio.ServerInterceptor):
    """Owns how calls fail: what cannot be decoded, does not arrive or is refused ends with a status and is logged."""

    def __init__(self, event_log: EventLog, *, limits: Limits, identity: Identity, classes: int = 0) -> None:
        self._event_log = event_log
        self._limits = limits
        self._identity = identity
        self._request_wait = limits.header_wait
        self._request_bytes = limits.request_bytes + classes * limits.bytes_per_class
        self._guarded: dict[str, Handler] = {}
        """Handlers by method, which exist: a caller cannot add any."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        guarded = self._guarded.get(handler_call_details.method)
        if guarded is None:
            handler = await continuation(handler_call_details)
            if handler is None:  # no such method: gRPC answers this itself
                return handler
            guarded = self._guarded[handler_call_details.method] = self._guard(handler, handler_call_details.method)
        return guarded

    def _guard(self, handler: Handler, method: str) -> Handler:
        call = method.rpartition("/")[2]
        most = self._most_bytes(call, is_upload=handler.stream_unary is not None)
        decode = _decoder(handler.request_deserializer, most)
        if handler.unary_unary is not None:
            return grpc.stream_unary_rpc_method_handler(self._unary(call, handler.unary_unary), decode, _encoded)
        if handler.unary_stream is not None:
            return grpc.stream_stream_rpc_method_handler(self._stream(call, handler.unary_stream), decode, _encoded)
        if handler.stream_unary is not None:
            guarded = self._upload(call, handler.stream_unary)
            return grpc.stream_unary_rpc_method_handler(guarded, _part_decoder(decode), _encoded)
        return handler

    def _most_bytes(self, call: str, *, is_upload: bool) -> int | None:
        """What a request can honestly have; gRPC's own limit is that of the parts of an upload."""
        if is_upload:
            return None
        return max(self._limits.report_bytes, self._request_bytes) if call == "Report" else self._request_bytes

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

        async def guarded(requests: AsyncIterator[Any], context: Context) -> None:
            try:
                async with aclosing(method(await self._only(requests), context)) as responses:
                    async for response in responses:
                        await self._write(response, context)
            except Exception as error:
                await self._fail(call, error, context)

        return guarded

    async def _write(self, response: Any, context: Context) -> None:
        """Sends a message; a caller that does not take it in time must not hold what is still to be sent."""
        wait = self._limits.stalled_wait.total_seconds()
        try:
            async with asyncio.timeout(wait):
                await context.write(response)
        except TimeoutError:
            raise RefusedError(pb.REFUSAL_REASON_BUSY, f"the caller took no message for {wait:g}s") from None
        except grpc.aio.InternalError:
            raise asyncio.CancelledError(_GONE) from None

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
            raise request.refusal
        return request

    async def _fail(self, call: str, error: Exception, context: Context) -> NoReturn:
        """Ends a call with the status its error stands for, and logs it."""
        if isinstance(error, grpc.aio.AbortError):
            raise error
        if not isinstance(error, RefusedError | PayloadError | StoreError):
            log.error("%s failed", call, exc_info=error)
            self._event_log.incident(None, f"{call} failed: {type(error).__name__}")
            await _abort(context, grpc.StatusCode.INTERNAL, f"the server failed to answer {call}; its log says why")
        refusal = as_refusal(error)
        _forget_frames(error)
        _forget_frames(refusal)
        caller = self._identity.name_of(context)
        self._event_log.refused(call, refusal, peer=context.peer(), caller=caller)
        details: Any = ((REFUSAL_METADATA_KEY, refusal.details.SerializeToString()),)
        await _abort(context, STATUS_OF[refusal.details.reason], str(refusal), trailing_metadata=details)


async def _abort(context: Context, code: grpc.StatusCode, message: str, **details: Any) -> NoReturn:
    try:
        await context.abort(code, message, **details)
    except grpc.aio.AbortError as error:
        asyncio.get_running_loop().call_soon(_forget_frames, error)  # once gRPC has handled it
        raise
    except grpc.aio.InternalError:
        raise asyncio.CancelledError(_GONE) from None


def _forget_frames(error: BaseException) -> None:
    """Breaks a cycle that would hold a call and its request until the garbage collector runs.

    The frames of an error have the call's context, in which gRPC keeps the error that ends the call.
    """
    error.__traceback__ = error.__context__ = None


def _decoder(decode: Any, most: int | None) -> Any:
    def decoded(data: bytes) -> Any:
        if most is not None and len(data) > most:
            return _Undecodable(
                RefusedError(
                    pb.REFUSAL_REASON_TOO_LARGE, f"the request has {len(data)} bytes, at most {most}", field="request"
                )
            )
        try:
            message = decode(data)
        except DecodeError as error:
            return _Undecodable(
                RefusedError(
                    pb.REFUSAL_REASON_INVALID_REQUEST, f"the request is not a message: {error}", field="request"
                )
            )
        message.DiscardUnknownFields()  # they would be stored with the message, and sent on
        if most is not None and message.ByteSize() < len(data):
            # what was decoded keeps its memory as long as any part of it is in use, such as a session's data
            message = decode(message.SerializeToString())
        return message

    return decoded


def _part_decoder(decode: Any) -> Any:
    """Of the parts of an upload: chunks as their bytes, headers as messages."""

    def decoded(data: bytes) -> Any:
        chunk = chunk_in(data)
        return decode(data) if chunk is None else chunk

    return decoded


def _encoded(response: Any) -> bytes:
    """A message, or what serialises itself as one."""
    encoded: bytes = response.SerializeToString()
    return encoded


class _Decoded:
    """The requests of a stream, which goes on after one that could not be decoded was refused."""

    def __init__(self, requests: AsyncIterator[Any]) -> None:
        self._requests = requests

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        request = await anext(self._requests)
        if isinstance(request, _Undecodable):
            raise request.refusal
        return request
