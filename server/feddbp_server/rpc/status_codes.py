"""One table from refusals to status codes, and the calls that answer by it."""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NoReturn, Protocol, TypeVar

import grpc

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.errors import PayloadError
from feddbp_common.rpc.failures import REFUSAL_METADATA_KEY
from feddbp_server.run.coordinator import Coordinator
from feddbp_server.run.refusals import RefusedError, as_refusal
from feddbp_server.store import StoreError

STATUS_OF: Final = {
    pb.REFUSAL_REASON_OTHER_RUN: grpc.StatusCode.FAILED_PRECONDITION,
    pb.REFUSAL_REASON_UNKNOWN_CLIENT: grpc.StatusCode.INVALID_ARGUMENT,
    pb.REFUSAL_REASON_ID_IN_USE: grpc.StatusCode.ALREADY_EXISTS,
    pb.REFUSAL_REASON_STALE_SESSION: grpc.StatusCode.UNAUTHENTICATED,
    pb.REFUSAL_REASON_WRONG_ROUND: grpc.StatusCode.FAILED_PRECONDITION,
    pb.REFUSAL_REASON_NOT_SELECTED: grpc.StatusCode.FAILED_PRECONDITION,
    pb.REFUSAL_REASON_ALREADY_UPLOADED: grpc.StatusCode.ALREADY_EXISTS,
    pb.REFUSAL_REASON_INVALID_PAYLOAD: grpc.StatusCode.INVALID_ARGUMENT,
    pb.REFUSAL_REASON_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    pb.REFUSAL_REASON_BUSY: grpc.StatusCode.UNAVAILABLE,
    pb.REFUSAL_REASON_RUN_ENDED: grpc.StatusCode.FAILED_PRECONDITION,
    pb.REFUSAL_REASON_INVALID_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    pb.REFUSAL_REASON_NOT_AUTHORISED: grpc.StatusCode.PERMISSION_DENIED,
    pb.REFUSAL_REASON_STORAGE: grpc.StatusCode.UNAVAILABLE,
}

log = logging.getLogger("feddbp.server")


class _Servicer(Protocol):
    coordinator: Coordinator


RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
ServicerT = TypeVar("ServicerT", bound=_Servicer)
Context = grpc.aio.ServicerContext[Any, Any]
Unary = Callable[[ServicerT, RequestT, Context], Awaitable[ResponseT]]
Streaming = Callable[[ServicerT, RequestT, Context], AsyncIterator[ResponseT]]


def answers(method: Unary[ServicerT, RequestT, ResponseT]) -> Unary[ServicerT, RequestT, ResponseT]:
    @functools.wraps(method)
    async def guarded(self: ServicerT, request: RequestT, context: Context) -> ResponseT:
        try:
            return await method(self, request, context)
        except Exception as error:
            await refuse_call(self.coordinator, method.__name__, error, request, context)

    return guarded


def streams(method: Streaming[ServicerT, RequestT, ResponseT]) -> Streaming[ServicerT, RequestT, ResponseT]:
    @functools.wraps(method)
    async def guarded(self: ServicerT, request: RequestT, context: Context) -> AsyncIterator[ResponseT]:
        try:
            async for response in method(self, request, context):
                yield response
        except Exception as error:
            await refuse_call(self.coordinator, method.__name__, error, request, context)

    return guarded


async def refuse_call(
    coordinator: Coordinator, call: str, error: Exception, request: object, context: Context
) -> NoReturn:
    """Ends a call with the status its error stands for, and takes note of it."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    refusal = as_refusal(error) if isinstance(error, PayloadError | StoreError) else error
    if not isinstance(refusal, RefusedError):
        log.error("%s failed", call, exc_info=error)
        coordinator.event_log.incident(None, f"{call} failed: {type(error).__name__}")
        await context.abort(grpc.StatusCode.INTERNAL, f"the server failed to answer {call}; its log says why")
    if refusal.client_id is None:
        refusal.client_id = _whose(coordinator, request)
    coordinator.event_log.refused(call, refusal, peer=context.peer())
    details: Any = ((REFUSAL_METADATA_KEY, refusal.details.SerializeToString()),)
    await context.abort(STATUS_OF[refusal.details.reason], str(refusal), trailing_metadata=details)


def _whose(coordinator: Coordinator, request: object) -> int | None:
    """Who called, as far as the request tells."""
    if isinstance(request, pb.JoinRequest):
        return request.client_id
    try:
        return coordinator.sessions.by_session(getattr(request, "session", "")).client_id
    except RefusedError:
        return None
