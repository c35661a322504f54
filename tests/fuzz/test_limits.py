"""Limits: nobody gets more of the server than their share, and whoever stays within them does not notice the others."""

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
from light_runs import Crowd, exits, round_open, start_server
from metrics import scrape
from processes import PATIENCE, Command, Federation, wait_until
from raw_calls import METHODS, HalfOpen, RawAnswer, RawCall, RawChannel, serialised
from server_state import peak_resident_bytes, resident_bytes

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.connection import Connection, ServerUnavailableError, upload_parts
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
"""What a stream that never says anything may cost the server while it is waited for."""


@dataclass
class Door:
    """A server whose clients have joined, and a way to call it in their names."""

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

    async def succeeds_to_send(self, client: int) -> None:
        """Uploads, and again for as long as it is told to come later, as a client does."""
        call = RawCall(method="Upload", messages=self.upload(client))
        answer = await eventually(lambda: self.channel.ask(call), lambda answer: answer.reason != "busy")
        assert answer.code is grpc.StatusCode.OK


@asynccontextmanager
async def door(running: Federation, *options: object, forked: bool = True) -> AsyncIterator[Door]:
    """Tests that measure the server's memory start it unforked: a forked process has that of its template."""
    server = await start_server(running, *RUN, *options, forked=forked)
    connection, channel = Connection(running.address), RawChannel(running.address)
    clients = [LightClient(number, connection) for number in range(CLIENTS)]
    for client in clients:
        await joined(client)
    try:
        yield Door(server, channel, clients)
    finally:
        await connection.close()
        await channel.close()


async def joined(client: LightClient) -> None:
    """Joins, and again where the machine was too slow for a short `--header-wait`."""
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
    """Asks until the answer is the wanted one: what another stream holds is free a moment after it has ended."""
    async with asyncio.timeout(PATIENCE):
        while True:
            answer: RawAnswer = await ask()
            if wanted(answer):
                return answer
            await asyncio.sleep(0.05)


class Holding:
    """Uploads that were announced and do not go on; opened again if another one was there first."""

    def __init__(self, at: Door, clients: Iterable[int]) -> None:
        self._at = at
        self.calls = {client: at.channel.open_upload(at.header(client)) for client in clients}

    async def while_asking(self, client: int) -> RawAnswer:
        """What an upload without a body is told meanwhile; it is refused either way."""
        for holder, call in self.calls.items():
            if call.done():
                self.calls[holder] = self._at.channel.open_upload(self._at.header(holder))
        return await self._at.channel.ask(RawCall(method="Upload", messages=[self._at.header(client)]))


# --- bytes ---


async def test_an_upload_over_the_limit_is_refused_on_its_header(running_federation: Federation) -> None:
    async with door(running_federation, *SMALL, "--max-upload-bytes", UPLOAD_BYTES - 1) as at:
        answer = await ended(at.channel.open_upload(at.header(0)))  # no chunk was sent, and none is waited for
    assert (answer.code, answer.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too_large")
    assert answer.details == "total_bytes: 320 bytes, at most 319 are admitted"


async def test_uploads_beyond_what_the_server_will_hold_are_told_to_come_later(running_federation: Federation) -> None:
    limits = ("--max-upload-bytes", UPLOAD_BYTES, "--max-bytes-in-flight", 3 * UPLOAD_BYTES)
    async with door(running_federation, *SMALL, *limits) as at:
        filling = Holding(at, range(3))
        full = await eventually(lambda: filling.while_asking(3), lambda answer: answer.reason == "busy")
        assert full.code is grpc.StatusCode.UNAVAILABLE
        assert "too many uploads" in full.details
        filling.calls[0].cancel()
        await at.succeeds_to_send(3)


async def test_a_client_has_one_upload_at_a_time(running_federation: Federation) -> None:
    async with door(running_federation, *SMALL) as at:
        first = Holding(at, [0])
        busy = await eventually(lambda: first.while_asking(0), lambda answer: answer.reason == "busy")
        assert "uploading already" in busy.details
        first.calls[0].cancel()
        await at.succeeds_to_send(0)


def received_parts(running: Federation) -> float | None:
    return scrape(running.state_dir).value("feddbp_grpc_messages_received_total", method="Upload")


async def test_what_is_announced_takes_no_memory_before_it_is_here(running_federation: Federation) -> None:
    """Thirty-two megabytes announced, three percent sent."""
    async with door(running_federation, *LARGE, "--metrics-port", 0, forked=False) as at:
        parts = [at.upload(client)[:2] for client in range(CLIENTS)]
        await asyncio.to_thread(received_parts, running_federation)  # the first scrape takes memory as well
        before = resident_bytes(at.pid)
        stalled = [at.channel.open_upload(*sent) for sent in parts]
        await asyncio.to_thread(
            wait_until, lambda: received_parts(running_federation) == 2 * CLIENTS, "the arrival of what was sent"
        )
        assert not any(call.done() for call in stalled)
        assert resident_bytes(at.pid) - before < 6e6


def test_a_body_in_single_bytes_takes_no_more_memory_than_the_same_body_in_one() -> None:
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


async def test_a_stream_that_says_nothing_is_ended(running_federation: Federation) -> None:
    async with door(running_federation, *SMALL, "--header-wait", "300ms", "--chunk-wait", "400ms") as at:
        without_header = await ended(at.channel.open_upload())
        without_chunks = await ended(at.channel.open_upload(at.header(0)))
        assert "nothing arrived for 0.3s" in without_header.details
        assert "nothing arrived for 0.4s" in without_chunks.details
        for answer in (without_header, without_chunks):  # a slow network is no crime: the client may try again
            assert (answer.code, answer.reason) == (grpc.StatusCode.UNAVAILABLE, "busy")
        await at.succeeds_to_send(0)


async def test_calls_whose_request_does_not_come_are_ended(running_federation: Federation) -> None:
    async with door(running_federation, *SMALL, "--header-wait", "300ms") as at:
        answers = await asyncio.gather(*(ended(at.channel.open_half(method)) for method in METHODS))
    for method, answer in zip(METHODS, answers, strict=True):
        assert (answer.code, answer.reason) == (grpc.StatusCode.UNAVAILABLE, "busy"), method
        assert "arrived for 0.3s" in answer.details


# --- streams ---


async def opened(call: Any) -> bool:
    """Whether a stream of answers began; otherwise it was refused for lack of room."""
    try:
        await call.read()
        await asyncio.sleep(0)
        return not call.done()
    except grpc.aio.AioRpcError as error:
        refusal = refusal_in(error)
        assert refusal is not None
        assert refusal.reason == pb.REFUSAL_REASON_BUSY
        return False


async def test_a_session_has_only_so_many_event_streams(running_federation: Federation) -> None:
    async with door(running_federation, *SMALL) as at:
        request = pb.FollowRequest(session=at.clients[0].session).SerializeToString()
        streams = [at.channel.open_answers("Follow", request) for _ in range(12)]
        began = [await opened(stream) for stream in streams]
        assert sum(began) == 4
        other = pb.FollowRequest(session=at.clients[1].session).SerializeToString()
        assert await opened(at.channel.open_answers("Follow", other))
        for stream in streams:
            stream.cancel()
        follow = RawCall(method="Follow", messages=[request])
        again = await eventually(lambda: at.channel.ask(follow), lambda answer: answer.reason != "busy")
        assert again.code is grpc.StatusCode.OK


async def test_a_session_has_only_so_many_downloads_that_nobody_reads(running_federation: Federation) -> None:
    async with door(running_federation, *LARGE) as at:
        for client in at.clients:
            await client.upload(0, client.encoded_upload(0))
        await round_open(running_federation.address, 1)
        request = pb.DownloadRequest(session=at.clients[0].session, round=1).SerializeToString()
        downloads = [at.channel.open_answers("Download", request) for _ in range(10)]
        began = [await opened(download) for download in downloads]
        assert sum(began) == 4
        assert (await at.clients[1].download(1)).message_bytes > 1e6
        for download in downloads:
            download.cancel()


async def test_only_so_many_watch_the_status(running_federation: Federation) -> None:
    async with door(running_federation, *SMALL) as at:
        watchers = [at.channel.open_answers("WatchStatus", b"") for _ in range(80)]
        began = [await opened(watcher) for watcher in watchers]
        assert sum(began) == 64
        status = await at.channel.ask(RawCall(method="GetStatus", messages=[b""]))
        assert status.code is grpc.StatusCode.OK


# --- messages ---


async def test_messages_and_metadata_have_a_size(running_federation: Federation) -> None:
    async with door(running_federation, *SMALL) as at:
        long_message = await at.channel.ask(RawCall(method="Join", messages=[bytes((1 << 20) + 1)]))
        long_metadata = await at.channel.ask(
            RawCall(method="GetRun", messages=[b""], metadata=(("x-noise", "n" * 32_000),))
        )
        assert long_message.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert long_metadata.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await at.channel.ask(RawCall(method="GetRun", messages=[b""]))).code is grpc.StatusCode.OK


async def test_a_message_that_swells_when_it_is_unpacked_is_stopped(running_federation: Federation) -> None:
    async with door(running_federation, *SMALL, forked=False) as at:
        before = resident_bytes(at.pid)
        bomb = pb.JoinRequest(run_id="a" * (64 << 20)).SerializeToString()
        packed = RawChannel(running_federation.address, compression=grpc.Compression.Gzip)
        answer = await packed.ask(RawCall(method="Join", messages=[bomb]))
        assert answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert peak_resident_bytes(at.pid) - before < 16e6
        await packed.close()


# --- half-open streams ---


async def test_a_thousand_half_open_uploads_do_not_stop_the_honest(running_federation: Federation) -> None:
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
"""Calls that may wait to be taken up; of more at once gRPC itself drops some, which clients try again."""


@pytest.mark.parametrize("count", [200, pytest.param(5_000, marks=pytest.mark.full)], ids=str)
async def test_half_open_uploads_are_forgotten_when_their_time_is_up(
    count: int, running_federation: Federation
) -> None:
    async with door(running_federation, *SMALL, "--header-wait", "500ms") as at:
        answers = await asyncio.gather(*(ended(at.channel.open_upload()) for _ in range(count)))
        given = {(answer.code, answer.reason) for answer in answers}
        busy, turned_away = (grpc.StatusCode.UNAVAILABLE, "busy"), (grpc.StatusCode.CANCELLED, "")
        assert given == {busy} if count < QUEUED_BY_GRPC else busy in given <= {busy, turned_away}
        await at.succeeds_to_send(0)
