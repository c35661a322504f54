"""States that come with events: the same as Download's, once, and never at the expense of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from coordinator_runs import ROUNDS, Daemon, Server, join_all, next_event

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.wire import Payload, decode, digest_of, encode
from feddbp_server.run.admission.limits import DEFAULT_LIMITS, Limits
from feddbp_server.run.pushed_states import EventWithState
from feddbp_server.store import MemoryStore


def following(daemon: Daemon, *, wants_state: bool = True) -> AsyncIterator[pb.RoundEvent | EventWithState]:
    return daemon.server.coordinator.follow(daemon.session, wants_state=wants_state)


def with_limits(directory: Path, limits: Limits) -> Server:
    return Server(MemoryStore(), directory, limits=limits)


async def close_round(server: Server, daemons: list[Daemon], number: int) -> None:
    for daemon in daemons:
        await daemon.work(number)
    await server.until_round(number + 1)


async def test_the_event_of_a_round_has_what_download_would_send(server: Server) -> None:
    daemons = await join_all(server)
    async with aclosing(following(daemons[1])) as events:  # type: ignore[type-var]
        for number in range(ROUNDS):
            event = await next_event(events)
            assert event.round_opened.round == number
            state = event.state
            assert digest_of(state.manifest, [state.body]) == state.manifest.sha256
            parts = [part async for part in server.coordinator.download(daemons[1].session, number)]
            assert parts[0].manifest == state.manifest
            assert b"".join(part.chunk.data for part in parts[1:]) == state.body
            await close_round(server, daemons, number)
        event = await next_event(events)
        assert event.HasField("final_evaluation")
        assert decode(event.state.manifest, event.state.body).prototypes is not None


@pytest.mark.parametrize("size", [0, 1, 31, 32, 4096, 100_000])
def test_an_event_with_a_state_has_the_bytes_of_the_message(size: int) -> None:
    """Of every length: how long a field is decides how many bytes its length takes."""
    state = encode(Payload(tensors={"guide": np.arange(size, dtype=np.float32)}))
    event = pb.RoundEvent(round_opened=pb.RoundOpened(round=3, selected=True))
    message = pb.RoundEvent(round_opened=event.round_opened)
    message.state.manifest.CopyFrom(state.manifest)
    message.state.body = state.body()
    sent = EventWithState(event, state).SerializeToString()
    assert pb.RoundEvent.FromString(sent) == message
    assert sent == message.SerializeToString() or size == 0  # protobuf leaves an empty body out


async def test_a_client_that_does_not_ask_for_states_gets_none(server: Server) -> None:
    daemons = await join_all(server)
    async with aclosing(following(daemons[0], wants_state=False)) as events:  # type: ignore[type-var]
        assert not (await next_event(events)).HasField("state")


async def test_a_round_that_is_announced_again_has_its_state_once(server: Server) -> None:
    daemons = await join_all(server)
    async with aclosing(following(daemons[0])) as events:  # type: ignore[type-var]
        assert (await next_event(events)).HasField("state")
        await server.coordinator.pause()
        assert (await next_event(events)).HasField("waiting")
        await server.coordinator.resume()
        again = await next_event(events)
        assert again.HasField("round_opened")
        assert not again.HasField("state")


async def test_a_client_that_comes_back_gets_its_state_unless_it_has_uploaded(server: Server) -> None:
    daemons = await join_all(server)
    for _ in range(2):
        async with aclosing(following(daemons[0])) as events:  # type: ignore[type-var]
            assert (await next_event(events)).HasField("state")
    await daemons[0].work(0)
    async with aclosing(following(daemons[0])) as events:  # type: ignore[type-var]
        assert not (await next_event(events)).HasField("state")


async def test_a_large_state_is_left_to_download(tmp_path: Path) -> None:
    async with with_limits(tmp_path, replace(DEFAULT_LIMITS, pushed_state_bytes=10)) as server:
        daemons = await join_all(server)
        await close_round(server, daemons, 0)
        async with aclosing(following(daemons[0])) as events:  # type: ignore[type-var]
            event = await next_event(events)
            assert event.round_opened.round == 1
            assert not event.HasField("state")
        assert (await daemons[0].download(1)).prototypes is not None


async def test_clients_that_do_not_read_their_state_delay_nobody(tmp_path: Path) -> None:
    limits = replace(DEFAULT_LIMITS, pushed_states=1, pushed_state_wait=timedelta(0))
    async with with_limits(tmp_path, limits) as server:
        daemons = await join_all(server)
        async with (
            aclosing(following(daemons[0])) as stuck,  # type: ignore[type-var]
            aclosing(following(daemons[1])) as prompt,  # type: ignore[type-var]
        ):
            assert (await next_event(stuck)).HasField("state")  # and is not read to its end
            event = await next_event(prompt)
            assert event.HasField("round_opened")
            assert not event.HasField("state")
            reading = asyncio.ensure_future(anext(stuck))
            await asyncio.sleep(0)
            async with aclosing(following(daemons[2])) as later:  # type: ignore[type-var]
                assert (await next_event(later)).HasField("state")
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
