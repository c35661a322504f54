"""The network at its worst, with TLS on: nothing hangs, the reason is logged, and the run ends with the same bits."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from light_runs import LIGHT_RUN, Crowd, Outcome, exits, start_server
from processes import Command, Federation
from tcp_proxy import Fate, TcpProxy, Way

from feddbp_common.tls import Access

INSIDE_A_TRANSFER = 200_000
"""Bytes: far more than a handshake and all messages but those of a transfer, and less than one transfer."""


@dataclass(frozen=True, kw_only=True)
class Behind:
    """A secured run of three, whose client 0 sits behind a proxy."""

    proxy: TcpProxy
    crowd: Crowd
    server: Command
    federation: Federation


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, logger="feddbp.client"):
        yield caplog


@asynccontextmanager
async def behind_proxy(running: Federation, access: Access, *options: object) -> AsyncIterator[Behind]:
    assert access.certs is not None
    server = await start_server(running, "--certs", access.certs, *LIGHT_RUN, *options)
    with TcpProxy(running.port) as proxy:
        async with Crowd(running.address, range(3), access=access, addresses={0: proxy.address}) as crowd:
            yield Behind(proxy=proxy, crowd=crowd, server=server, federation=running)


async def expect_end(behind: Behind, expected: Outcome) -> None:
    await behind.crowd.ended()
    await exits(behind.server, 0)
    assert behind.federation.outcome() == expected


def reasons_of(client_id: int, logged: pytest.LogCaptureFixture) -> list[str]:
    """Why a client had to try again, in the words of its log."""
    return [text for text in logged.messages if text.startswith(f"client {client_id}: ") and "trying again" in text]


CUTS = [
    pytest.param(fate, way, id=f"{fate.value}-{way.value}", marks=() if is_fast else (pytest.mark.full,))
    for fate, way, is_fast in (
        (Fate.RESET, Way.UP, True),
        (Fate.RESET, Way.DOWN, False),
        (Fate.CLOSE, Way.UP, False),
        (Fate.CLOSE, Way.DOWN, True),
        (Fate.HALF_CLOSE, Way.UP, True),
        (Fate.HALF_CLOSE, Way.DOWN, False),
        (Fate.SILENCE, Way.UP, True),
        (Fate.SILENCE, Way.DOWN, False),
    )
]


@pytest.mark.parametrize(("fate", "way"), CUTS)
async def test_a_connection_that_is_lost_inside_a_transfer_costs_a_try(
    fate: Fate,
    way: Way,
    running_federation: Federation,
    access: Access,
    undisturbed_light: Outcome,
    logged: pytest.LogCaptureFixture,
) -> None:
    async with behind_proxy(running_federation, access) as behind:
        trap = behind.proxy.set_trap(fate, way, INSIDE_A_TRANSFER)
        await trap.sprung()
        await expect_end(behind, undisturbed_light)
    assert reasons_of(0, logged)
    assert not reasons_of(1, logged)
