"""Limits on bytes, time, streams and messages; callers that exceed them do not affect the others."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from benchmarks.light_client import LightClient
from floods import NARROW
from light_runs import Crowd, exits, round_open, start_server
from metrics import scrape
from processes import PATIENCE, Command, Federation, wait_until
from raw_calls import METHODS, HalfOpen, RawAnswer, RawCall, RawChannel, serialised
from server_state import peak_resident_bytes, resident_bytes

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.connection import Connection, ServerUnavailableError
from feddbp_client.daemon.transfers import upload_parts
from feddbp_common.rpc.failures import refusal_in
from feddbp_common.wire import BodyAssembler

CLIENTS = 4
UPLOAD_BYTES = 320  # two matrices of 5 x 8 floats
RUN = (
    *("--clients", CLIENTS, "--min-clients", CLIENTS, "--rounds", 2, "--round-deadline", 0),
    *("--dataset", "custom", "--classes", 5, "--set", "k_top=2"),
)
SMALL = ("--feature-dim", 8)
LARGE = ("--classes", 16, "--feature-dim", 65_535)
HALF_OPEN = 1_000
BYTES_PER_HALF_OPEN_STREAM = 64e3
"""Memory that a stalled stream may take until its timeout."""


@dataclass
class Target:
    """A server whose clients have joined, and a channel to call it in their name."""

    server: Command
    channel: RawChannel
    clients: list[LightClient]

    @property
    def pid(self) -> int:
        return self.server.process.pid

    def header(self, client: int) -> bytes:
        return self.upload(client)[0]

    def upload(self, client: int) -> list[bytes]:
        sender = self.clients[client]
        return serialised(upload_parts(sender.session, 0, sender.encoded_upload(0)))

    async def expect_upload(self, client: int) -> None:
        """Uploads, with retries while the server is busy, as a client does."""
        call = RawCall(method="Upload", messages=self.upload(client))
        answer = await eventually(lambda: self.channel.ask(call), lambda answer: answer.reason != "busy")
        assert answer.code is grpc.StatusCode.OK


@asynccontextmanager
async def target_of(running: Federation, *options: object, forked: bool = True) -> AsyncIterator[Target]:
    """Tests that measure the server's memory start it unforked: a forked process has that of its template."""
    server = await start_server(running, *RUN, *options, forked=forked)
    connection, channel = Connection(running.address), RawChannel(running.address)
    clients = [LightClient(number, connection) for number in range(CLIENTS)]
    for client in clients:
        await joined(client)
    try:
        yield Target(server, channel, clients)
    finally:
        await connection.close()
        await channel.close()


async def joined(client: LightClient) -> None:
    """Joins, with retries where the machine is too slow for a short `--header-wait`."""
    async with asyncio.timeout(PATIENCE):
        while not client.session:
            with suppress(ServerUnavailableError):
                await client.join()


async def ended(call: HalfOpen) -> RawAnswer:
    try:
        async with asyncio.timeout(PATIENCE):
            return RawAnswer(code=grpc.StatusCode.OK, message=await call)
    except grpc.aio.AioRpcError as error:
        return RawAnswer(code=error.code(), details=error.details() or "", refusal=refusal_in(error))


async def eventually(ask: Callable[[], Any], wanted: Callable[[RawAnswer], bool]) -> RawAnswer:
    """Repeats a call until its answer is the wanted one: what a stream holds is released a moment after its end."""
    async with asyncio.timeout(PATIENCE):
        while True:
            answer: RawAnswer = await ask()
            if wanted(answer):
                return answer
            await asyncio.sleep(0.05)


class StalledUploads:
    """Uploads that stall after their header; repeated if another one came first."""

    def __init__(self, target: Target, clients: Iterable[int]) -> None:
        self._target = target
        self.calls = {client: target.channel.open_upload(target.header(client)) for client in clients}

    async def while_asking(self, client: int) -> RawAnswer:
        """The answer to an upload without a body meanwhile; it is refused in any case."""
        for holder, call in self.calls.items():
            if call.done():
                self.calls[holder] = self._target.channel.open_upload(self._target.header(holder))
        return await self._target.channel.ask(RawCall(method="Upload", messages=[self._target.header(client)]))


# --- bytes ---


async def test_an_upload_over_the_limit_is_refused_on_its_header(running_federation: Federation) -> None:
    async with target_of(running_federation, *SMALL, "--max-upload-bytes", UPLOAD_BYTES - 1) as target:
        answer = await ended(target.channel.open_upload(target.header(0)))  # without a chunk
    assert (answer.code, answer.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too_large")
    assert answer.details == "total_bytes: 320 bytes, at most 319 are admitted"


async def test_uploads_beyond_the_bytes_in_flight_are_refused_as_busy(running_federation: Federation) -> None:
    limits = ("--max-upload-bytes", UPLOAD_BYTES, "--max-bytes-in-flight", 3 * UPLOAD_BYTES)
    async with target_of(running_federation, *SMALL, *limits) as target:
        filling = StalledUploads(target, range(3))
        full = await eventually(lambda: filling.while_asking(3), lambda answer: answer.reason == "busy")
        assert full.code is grpc.StatusCode.UNAVAILABLE
        assert "too many uploads" in full.details
        filling.calls[0].cancel()
        await target.expect_upload(3)


async def test_a_client_has_one_upload_at_a_time(running_federation: Federation) -> None:
    async with target_of(running_federation, *SMALL) as target:
        first = StalledUploads(target, [0])
        busy = await eventually(lambda: first.while_asking(0), lambda answer: answer.reason == "busy")
        assert "uploading already" in busy.details
        first.calls[0].cancel()
        await target.expect_upload(0)


def received_parts(running: Federation) -> float | None:
    return scrape(running.state_dir).value("feddbp_grpc_messages_received_total", method="Upload")


async def test_an_announced_upload_takes_no_memory_before_its_bytes_arrive(running_federation: Federation) -> None:
    """Thirty-two megabytes are announced, three percent of them sent."""
    async with target_of(running_federation, *LARGE, "--metrics-port", 0, forked=False) as target:
        parts = [target.upload(client)[:2] for client in range(CLIENTS)]
        await asyncio.to_thread(received_parts, running_federation)  # the first scrape takes memory as well
        before = resident_bytes(target.pid)
        stalled = [target.channel.open_upload(*sent) for sent in parts]
        await asyncio.to_thread(
            wait_until, lambda: received_parts(running_federation) == 2 * CLIENTS, "the arrival of what was sent"
        )
        assert not any(call.done() for call in stalled)
        assert resident_bytes(target.pid) - before < 6e6


def test_a_body_in_single_bytes_takes_no_more_memory_than_in_one_chunk() -> None:
    size = 200_000
    assembler = BodyAssembler(size)
    tracemalloc.start()
    try:
        for number in range(size):
            assembler.add(bytes([number % 251]))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 2 * size
    assert assembler.body() == bytes(number % 251 for number in range(size))


# --- time ---


async def test_a_stalled_upload_is_ended(running_federation: Federation) -> None:
    async with target_of(running_federation, *SMALL, "--header-wait", "300ms", "--chunk-wait", "400ms") as target:
        without_header = await ended(target.channel.open_upload())
        without_chunks = await ended(target.channel.open_upload(target.header(0)))
        assert "nothing arrived for 0.3s" in without_header.details
        assert "nothing arrived for 0.4s" in without_chunks.details
        for answer in (without_header, without_chunks):  # the network may be slow: the client may retry
            assert (answer.code, answer.reason) == (grpc.StatusCode.UNAVAILABLE, "busy")
        await target.expect_upload(0)


async def test_calls_without_a_request_are_ended(running_federation: Federation) -> None:
    async with target_of(running_federation, *SMALL, "--header-wait", "300ms") as target:
        answers = await asyncio.gather(*(ended(target.channel.open_half(method)) for method in METHODS))
    for method, answer in zip(METHODS, answers, strict=True):
        assert (answer.code, answer.reason) == (grpc.StatusCode.UNAVAILABLE, "busy"), method
        assert "arrived for 0.3s" in answer.details


# --- streams ---


async def opened(call: Any) -> bool:
    """Whether a stream of answers began; otherwise it was refused as over the limit."""
    try:
        await call.read()
        await asyncio.sleep(0)
        return not call.done()
    except grpc.aio.AioRpcError as error:
        refusal = refusal_in(error)
        assert refusal is not None
        assert refusal.reason == pb.REFUSAL_REASON_BUSY
        return False


async def test_event_streams_of_a_session_are_limited(running_federation: Federation) -> None:
    async with target_of(running_federation, *SMALL) as target:
        request = pb.FollowRequest(session=target.clients[0].session).SerializeToString()
        streams = [target.channel.open_answers("Follow", request) for _ in range(12)]
        began = [await opened(stream) for stream in streams]
        assert sum(began) == 4
        other = pb.FollowRequest(session=target.clients[1].session).SerializeToString()
        assert await opened(target.channel.open_answers("Follow", other))
        for stream in streams:
            stream.cancel()
        follow = RawCall(method="Follow", messages=[request])
        again = await eventually(lambda: target.channel.ask(follow), lambda answer: answer.reason != "busy")
        assert again.code is grpc.StatusCode.OK


async def test_unread_downloads_of_a_session_are_limited(running_federation: Federation) -> None:
    async with target_of(running_federation, *LARGE) as target:
        for client in target.clients:
            await client.upload(0, client.encoded_upload(0))
        await round_open(running_federation.address, 1)
        request = pb.DownloadRequest(session=target.clients[0].session, round=1).SerializeToString()
        narrow = RawChannel(running_federation.address, options=NARROW)  # none of them is sent to its end
        downloads = [narrow.open_answers("Download", request) for _ in range(10)]
        began = [await opened(download) for download in downloads]
        assert sum(began) == 4
        assert (await target.clients[1].download(1)).message_bytes > 1e6
        await narrow.close()


async def test_streams_of_the_status_are_limited(running_federation: Federation) -> None:
    async with target_of(running_federation, *SMALL) as target:
        watchers = [target.channel.open_answers("WatchStatus", b"") for _ in range(80)]
        began = [await opened(watcher) for watcher in watchers]
        assert sum(began) == 64
        status = await target.channel.ask(RawCall(method="GetStatus", messages=[b""]))
        assert status.code is grpc.StatusCode.OK


# --- messages ---


async def test_messages_and_metadata_over_the_limit_are_refused(running_federation: Federation) -> None:
    async with target_of(running_federation, *SMALL) as target:
        long_message = await target.channel.ask(RawCall(method="Join", messages=[bytes((1 << 20) + 1)]))
        long_metadata = await target.channel.ask(
            RawCall(method="GetRun", messages=[b""], metadata=(("x-noise", "n" * 32_000),))
        )
        assert long_message.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert long_metadata.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await target.channel.ask(RawCall(method="GetRun", messages=[b""]))).code is grpc.StatusCode.OK


async def test_a_compressed_message_over_the_limit_takes_no_memory(running_federation: Federation) -> None:
    async with target_of(running_federation, *SMALL, forked=False) as target:
        before = resident_bytes(target.pid)
        bomb = pb.JoinRequest(run_id="a" * (64 << 20)).SerializeToString()
        packed = RawChannel(running_federation.address, compression=grpc.Compression.Gzip)
        answer = await packed.ask(RawCall(method="Join", messages=[bomb]))
        assert answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert peak_resident_bytes(target.pid) - before < 16e6
        await packed.close()


# --- half-open streams ---


async def test_a_thousand_half_open_uploads_do_not_stop_a_run(running_federation: Federation) -> None:
    options = (*SMALL, "--header-wait", "10m", "--linger", "5s")
    server = await start_server(running_federation, *RUN, *options, forked=False)
    before = resident_bytes(server.process.pid)
    channels = [RawChannel(running_federation.address) for _ in range(10)]
    half_open = [channels[number % 10].open_upload() for number in range(HALF_OPEN)]
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(call.wait_for_connection() for call in half_open))
    async with Crowd(running_federation.address, range(CLIENTS)) as crowd:
        ends = await crowd.ended()
        assert {end.outcome for end in ends.values() if end} == {pb.RUN_OUTCOME_FINISHED}
        assert sum(not call.done() for call in half_open) == HALF_OPEN
        grown = peak_resident_bytes(server.process.pid) - before
    print(f"\n{HALF_OPEN} half-open uploads: {before / 1e6:.1f} MB before, {grown / 1e6:.1f} MB more at most")
    assert grown < HALF_OPEN * BYTES_PER_HALF_OPEN_STREAM
    await exits(server, 0)
    answers = await asyncio.gather(*map(ended, half_open))
    assert {answer.code for answer in answers} <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    for channel in channels:
        await channel.close()


QUEUED_BY_GRPC = 1000
"""Calls that may wait for a handler; of more at once gRPC drops some, which clients retry."""


@pytest.mark.parametrize("count", [200, pytest.param(5_000, marks=pytest.mark.full)], ids=str)
async def test_half_open_uploads_are_ended_after_their_timeout(count: int, running_federation: Federation) -> None:
    async with target_of(running_federation, *SMALL, "--header-wait", "500ms") as target:
        answers = await asyncio.gather(*(ended(target.channel.open_upload()) for _ in range(count)))
        given = {(answer.code, answer.reason) for answer in answers}
        busy, turned_away = (grpc.StatusCode.UNAVAILABLE, "busy"), (grpc.StatusCode.CANCELLED, "")
        assert given == {busy} if count < QUEUED_BY_GRPC else busy in given <= {busy, turned_away}
        await target.expect_upload(0)
