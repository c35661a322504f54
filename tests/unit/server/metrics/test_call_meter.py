"""The call meter before real handlers of all four kinds, however their calls end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import pytest

from feddbp_server.metrics.calls import RECEIVED, SENT, CallMeter, MethodCalls

PATIENCE = 10.0


class Handlers(grpc.GenericRpcHandler):
    """Methods on bytes; the test controls what a stream waits for."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.received = asyncio.Event()

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        kind, _, name = details.method.removeprefix("/t/").partition(".")
        method = getattr(self, name, None)
        makers: dict[str, Callable[[Any], Any]] = {
            "uu": grpc.unary_unary_rpc_method_handler,
            "us": grpc.unary_stream_rpc_method_handler,
            "su": grpc.stream_unary_rpc_method_handler,
            "ss": grpc.stream_stream_rpc_method_handler,
        }
        return None if method is None else makers[kind](method)

    async def answer(self, request: Any, context: Any) -> bytes:
        return b"answer"

    async def set_code(self, request: Any, context: Any) -> bytes:
        context.set_code(grpc.StatusCode.DATA_LOSS)
        return b""

    async def abort(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, "not here")

    async def fail(self, request: Any, context: Any) -> bytes:
        raise ValueError("on purpose")

    async def wait(self, request: Any, context: Any) -> bytes:
        await self.go_on.wait()
        return b""

    async def gather(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        return b"".join([request async for request in requests])

    async def gather_and_wait(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        """A cancelled stream may first look as if it had ended."""
        async for _ in requests:
            self.received.set()
        await self.go_on.wait()
        return b""

    async def three(self, request: Any, context: Any) -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"part"
        await self.go_on.wait()

    async def abort_later(self, request: Any, context: Any) -> AsyncIterator[bytes]:
        yield b"part"
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "enough")

    async def flood(self, request: Any, context: Any) -> AsyncIterator[bytes]:
        while True:
            yield bytes(1 << 20)

    async def echo(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    async def write_back(self, requests: AsyncIterator[bytes], context: Any) -> None:
        async for request in requests:
            await context.write(request)


class Metered:
    """A server with a meter, and a channel to it."""

    def __init__(self, meter: CallMeter, handlers: Handlers, channel: grpc.aio.Channel) -> None:
        self.handlers = handlers
        self.channel = channel
        self.meter = meter

    def calls(self, method: str) -> MethodCalls:
        return self.meter.methods[f"/t/{method}"]

    async def unary(self, method: str, **options: Any) -> None:
        with suppress(grpc.aio.AioRpcError):
            bound: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(f"/t/{method}")
            await bound(b"", **options)

    def unary_stream(self, method: str) -> grpc.aio.UnaryStreamCall[bytes, bytes]:
        bound: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self.channel.unary_stream(f"/t/{method}")
        return bound(b"")

    def stream_unary(
        self, method: str, requests: AsyncIterator[bytes] | None = None
    ) -> grpc.aio.StreamUnaryCall[bytes, bytes]:
        bound: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = self.channel.stream_unary(f"/t/{method}")
        return bound(requests)

    def stream_stream(self, method: str, requests: AsyncIterator[bytes]) -> grpc.aio.StreamStreamCall[bytes, bytes]:
        bound: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self.channel.stream_stream(f"/t/{method}")
        return bound(requests)

    async def over(self, method: str) -> dict[str, int]:
        """The calls of a method by code, once none is running: the server may see an end later than its caller."""
        async with asyncio.timeout(PATIENCE):
            while self._going_on(method):  # noqa: ASYNC110 - a meter has no notification
                await asyncio.sleep(0.005)
        calls = self.calls(method)
        assert calls.seconds.cumulative[-1] == calls.started == calls.handled.total()
        return dict(calls.handled)

    def started(self, method: str) -> int:
        return self.meter.methods.get(f"/t/{method}", MethodCalls()).started

    def _going_on(self, method: str) -> bool:
        return self.started(method) == 0 or self.calls(method).handled.total() < self.started(method)


@asynccontextmanager
async def metered() -> AsyncIterator[Metered]:
    meter, handlers = CallMeter(), Handlers()
    server = grpc.aio.server(interceptors=[meter])
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Metered(meter, handlers, channel)
    finally:
        await server.stop(None)


async def pieces(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b"x"


@pytest.mark.parametrize(
    ("method", "code"), [("answer", "OK"), ("set_code", "DATA_LOSS"), ("abort", "NOT_FOUND"), ("fail", "UNKNOWN")]
)
async def test_a_unary_call_is_counted_with_the_code_its_caller_sees(method: str, code: str) -> None:
    async with metered() as server:
        await server.unary(f"uu.{method}")
        await server.unary(f"uu.{method}")
        assert await server.over(f"uu.{method}") == {code: 2}


async def test_a_call_that_times_out_at_the_caller_is_cancelled() -> None:
    async with metered() as server:
        while server.started("uu.wait") == 0:  # the timeout may pass before the call reaches the server
            await server.unary("uu.wait", timeout=0.05)
        assert (await server.over("uu.wait")).keys() == {"CANCELLED"}


async def test_a_response_stream_is_timed_to_its_last_response() -> None:
    async with metered() as server:
        call = server.unary_stream("us.three")
        received = [await call.read() for _ in range(3)]
        assert received == [b"part"] * 3
        calls = server.calls("us.three")
        assert (calls.started, calls.handled.total(), calls.seconds.cumulative[-1]) == (1, 0, 0)
        server.handlers.go_on.set()
        assert await call.code() is grpc.StatusCode.OK
        assert await server.over("us.three") == {"OK": 1}
        assert calls.messages == {RECEIVED: 1, SENT: 3}


async def test_a_stream_that_is_aborted_after_its_first_response() -> None:
    async with metered() as server:
        call = server.unary_stream("us.abort_later")
        assert await call.read() == b"part"
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await server.over("us.abort_later") == {"RESOURCE_EXHAUSTED": 1}


@pytest.mark.parametrize("method", ["us.three", "us.flood"])
async def test_a_stream_its_caller_cancels_ends_even_while_a_response_is_being_sent(method: str) -> None:
    async with metered() as server:
        call = server.unary_stream(method)
        await call.read()
        call.cancel()
        assert await server.over(method) == {"CANCELLED": 1}


async def test_every_message_of_a_stream_of_requests_is_counted() -> None:
    async with metered() as server:
        assert await server.stream_unary("su.gather", pieces(5)) == b"xxxxx"
        assert await server.over("su.gather") == {"OK": 1}
        assert server.calls("su.gather").messages == {RECEIVED: 5, SENT: 1}


async def test_a_request_stream_that_breaks_off_is_cancelled() -> None:
    async with metered() as server:
        call = server.stream_unary("su.gather_and_wait")
        await call.write(b"x")
        await server.handlers.received.wait()
        call.cancel()
        assert await server.over("su.gather_and_wait") == {"CANCELLED": 1}


@pytest.mark.parametrize("method", ["echo", "write_back"])
async def test_streams_both_ways_whether_answers_are_yielded_or_written(method: str) -> None:
    async with metered() as server:
        call = server.stream_stream(f"ss.{method}", pieces(4))
        assert [answer async for answer in call] == [b"x"] * 4
        assert await server.over(f"ss.{method}") == {"OK": 1}
        assert server.calls(f"ss.{method}").messages == {RECEIVED: 4, SENT: 4}


async def test_calls_of_unknown_methods_are_not_counted() -> None:
    async with metered() as server:
        await server.unary("uu.nothing")
        assert server.meter.methods == {}


def test_two_meters_share_nothing() -> None:
    one, other = CallMeter(), CallMeter()
    one.methods["/t/m"] = MethodCalls()
    assert other.methods == {}
