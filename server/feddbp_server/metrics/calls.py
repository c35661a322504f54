"""Counts gRPC calls of all four kinds, and times each to its end, not to the return of an iterator."""

from __future__ import annotations

import inspect
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

import grpc

from feddbp_server.rpc.auth import Context
from feddbp_server.rpc.interceptors import Handler
from feddbp_server.run.durations import Durations

BOUNDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0),
)
"""A report takes milliseconds, an upload seconds, an event stream hours."""
RECEIVED: Final = "received"
SENT: Final = "sent"
_KINDS: Final = (
    ("unary_unary", grpc.unary_unary_rpc_method_handler),
    ("unary_stream", grpc.unary_stream_rpc_method_handler),
    ("stream_unary", grpc.stream_unary_rpc_method_handler),
    ("stream_stream", grpc.stream_stream_rpc_method_handler),
)


class MethodCalls:
    """The calls of one method."""

    def __init__(self) -> None:
        self.started = 0
        self.handled: Counter[str] = Counter()
        """Finished calls, by status code."""
        self.seconds = Durations(BOUNDS)
        self.messages: Counter[str] = Counter()
        """Messages, by direction."""


class _Call:
    """One call, from entering its handler to the end of the RPC."""

    def __init__(self, calls: MethodCalls, context: Context) -> None:
        self._calls = calls
        self._began = time.perf_counter()
        self.code = grpc.StatusCode.CANCELLED
        """A handler that neither returns nor raises was cancelled."""
        calls.started += 1
        over: Any = self._over  # the type stubs accept only their own callback class
        context.add_done_callback(over)

    def _over(self, context: Context) -> None:
        # the caller sees the code that was set or aborted with; otherwise only the handler knows how the call ended
        code = context.code() or self.code
        self._calls.handled[code.name] += 1
        self._calls.seconds.add(time.perf_counter() - self._began)


class CallMeter(grpc.aio.ServerInterceptor):
    """Counts and times calls; comes before every other interceptor, so that calls those refuse are counted, too."""

    def __init__(self) -> None:
        self.methods: dict[str, MethodCalls] = {}
        """By full name; only methods that exist, so that callers cannot create series."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        calls = self.methods.setdefault(handler_call_details.method, MethodCalls())
        for kind, make in _KINDS:
            behaviour = getattr(handler, kind)
            if behaviour is not None:
                return make(
                    _measured(behaviour, calls),
                    _counted(handler.request_deserializer, calls, RECEIVED),
                    _counted(handler.response_serializer, calls, SENT),
                )
        return handler


def _measured(behaviour: Any, calls: MethodCalls) -> Any:
    if inspect.isasyncgenfunction(behaviour):
        return _measured_stream(behaviour, calls)

    async def measured(request: Any, context: Context) -> Any:
        call = _Call(calls, context)
        try:
            response = await behaviour(request, context)
        except Exception:
            call.code = grpc.StatusCode.UNKNOWN
            raise
        call.code = grpc.StatusCode.OK
        return response

    return measured


def _measured_stream(behaviour: Any, calls: MethodCalls) -> Any:
    async def measured(request: Any, context: Context) -> AsyncIterator[Any]:
        call = _Call(calls, context)
        try:
            async with aclosing(behaviour(request, context)) as responses:
                async for response in responses:
                    yield response
        except Exception:
            call.code = grpc.StatusCode.UNKNOWN
            raise
        call.code = grpc.StatusCode.OK

    return measured


def _counted(convert: Any, calls: MethodCalls, way: str) -> Any:
    """Counts messages in the serializers, which all kinds of handlers have in common."""

    def counted(message: Any) -> Any:
        calls.messages[way] += 1
        return message if convert is None else convert(message)

    return counted
