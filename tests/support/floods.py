"""Floods of calls against a live server, in waves without end: by a member, by strangers, and beside the protocol."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from benchmarks.light_client import LightClient
from raw_calls import METHODS, RawAnswer, RawCall, RawChannel

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.connection import CallRefusedError, ServerUnavailableError

NARROW: Final = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16 << 10))
"""Options of a caller that takes in little of what it does not read."""
_PAUSE: Final = 0.05
"""Seconds between waves; longer than that is nothing left to do while the server is down."""
_HELD: Final = 120
"""Streams and connections that one flood holds open; the oldest make room."""
_SUPERSEDED: Final = 5
"""Sessions of the member that a flood supersedes: each costs the member's honest half a new session."""


def unknown_field(size: int) -> bytes:
    """A field that no version of the protocol has, of this many bytes."""
    length = bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14])
    return b"\xfa\x3e" + length + bytes(size)


class Flood:
    """Calls of one kind while a run goes on; `member` is an honest client of it under whose id some are made."""

    def __init__(self, kind: str, address: str, member: LightClient, *, token: str, run_id: str) -> None:
        self.address = address
        self.member = member
        self.metadata = (("authorization", f"Bearer {token}"),)
        self.run_id = run_id
        self.metrics_port = 0
        self.calls = 0
        self.answers: set[str] = set()
        """What was answered, by status and reason."""
        self.channel = RawChannel(address)
        self.narrow: deque[RawChannel] = deque()
        self.superseded = 0
        self._held: deque[Any] = deque()
        self._wave = FLOODS[kind]
        self._more = asyncio.Event()

    async def run(self) -> None:
        while True:
            await self._wave(self)
            self._more.set()
            await asyncio.sleep(_PAUSE)

    async def made(self, calls: int) -> None:
        """Waits until so many calls were made."""
        while self.calls < calls:
            self._more.clear()
            await self._more.wait()

    async def ask(self, *calls: RawCall) -> None:
        answers: list[RawAnswer] = await asyncio.gather(*map(self.channel.ask, calls))
        self.calls += len(calls)
        self.answers |= {answer.reason or answer.code.name for answer in answers}

    def hold(self, call: Any, close: Callable[[Any], Awaitable[object] | object]) -> None:
        self.calls += 1
        self._held.append((call, close))

    async def make_room(self, held: int = _HELD) -> None:
        while len(self._held) > held:
            call, close = self._held.popleft()
            closing = close(call)
            if isinstance(closing, Awaitable):
                with suppress(ConnectionError):
                    await closing

    async def close(self) -> None:
        await self.make_room(0)
        for channel in (self.channel, *self.narrow):
            await channel.close()


def _join(flood: Flood, filling: int) -> RawCall:
    request = pb.JoinRequest(
        run_id=flood.run_id, client_id=flood.member.client_id, data=pb.DataSummary(label_counts=[1] * 4)
    )
    message = request.SerializeToString() + unknown_field(filling)
    return RawCall(method="Join", messages=[message], metadata=flood.metadata)


async def _large_joins(flood: Flood) -> None:
    """Of one id: some larger than a request may be, some with as many unknown fields as fit."""
    await flood.ask(*(_join(flood, 370_000) for _ in range(20)), *(_join(flood, 60_000) for _ in range(20)))


async def _unknown_fields(flood: Flood) -> None:
    """Valid reports of a member that are nearly all unknown fields."""
    report = pb.ReportRequest(session=flood.member.session, progress=pb.Progress(epochs_done=1, epochs=2))
    message = report.SerializeToString() + unknown_field(180_000)
    await flood.ask(*(RawCall(method="Report", messages=[message], metadata=flood.metadata) for _ in range(20)))


async def _superseded_streams(flood: Flood) -> None:
    """Event streams and downloads that nobody reads, under sessions that are superseded by the next."""
    channel = RawChannel(flood.address, options=NARROW)
    flood.narrow.append(channel)
    session = flood.member.session
    follow = pb.FollowRequest(session=session, wants_state=True).SerializeToString()
    download = pb.DownloadRequest(session=session, round=1).SerializeToString()
    for method, message in (("Follow", follow), ("Download", download)):
        for _ in range(8):
            flood.hold(channel.open_answers(method, message, flood.metadata), lambda call: call.cancel())
    if flood.superseded < _SUPERSEDED:
        flood.superseded += 1
        with suppress(CallRefusedError, ServerUnavailableError):
            await flood.member.join()
    while len(flood.narrow) > (3 if flood.superseded < _SUPERSEDED else 0):
        await flood.narrow.popleft().close()


async def _stalled_writers(flood: Flood) -> None:
    """Calls of every method whose requests do not arrive, and uploads of the member without their chunks."""
    await flood.make_room()
    for method in METHODS:
        flood.hold(flood.channel.open_half(method), lambda call: call.cancel())
    encoded = flood.member.encoded_upload(1)
    header = pb.UploadHeader(session=flood.member.session, round=1, manifest=encoded.manifest)
    part = pb.UploadPart(header=header).SerializeToString()
    for _ in range(4):
        flood.hold(flood.channel.open_upload(part), lambda call: call.cancel())


async def _slow_scrapers(flood: Flood) -> None:
    """Connections to the metrics that ask and do not read, or do not even ask to the end."""
    await flood.make_room()
    for request in (b"GET /metrics HTTP/1.1\r\n", b"GET /metrics HTTP/1.1\r\n\r\n", b"") * 5:
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", flood.metrics_port, limit=1)
            writer.write(request)
            flood.hold(writer, lambda writer: writer.close())


async def _unread_statuses(flood: Flood) -> None:
    """Streams of the status and of events that a member asks for, who may not, and nobody reads."""
    await flood.make_room()
    for method in ("WatchStatus", "WatchRun"):
        for _ in range(10):
            flood.hold(flood.channel.open_answers(method, b"", flood.metadata), lambda call: call.cancel())
    await flood.ask(*(RawCall(method="GetStatus", messages=[b""], metadata=flood.metadata) for _ in range(10)))


async def _strangers(flood: Flood) -> None:
    """Every method without a token, or with a wrong one."""
    join = _join(flood, 10).messages[0]
    words: tuple[tuple[tuple[str, str], ...], ...] = ((), (("authorization", "Bearer guess"),))
    await flood.ask(
        *(
            RawCall(method=method, messages=[join if method == "Join" else b""], metadata=metadata)
            for method in METHODS
            for metadata in words
        )
    )


FLOODS: Final[Mapping[str, Callable[[Flood], Awaitable[None]]]] = {
    "large joins": _large_joins,
    "unknown fields": _unknown_fields,
    "superseded streams": _superseded_streams,
    "stalled writers": _stalled_writers,
    "slow scrapers": _slow_scrapers,
    "unread statuses": _unread_statuses,
    "strangers": _strangers,
}
