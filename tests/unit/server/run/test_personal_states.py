"""Personal states: those of one client are computed one after the other, and end with its session."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from coordinator_runs import Daemon, Server, join_all, refusal_of, until_waited_for

from feddbp.v1 import federation_pb2 as pb
from feddbp_server.run.admission.fairness import FairSlots
from feddbp_server.run.admission.limits import DEFAULT_LIMITS
from feddbp_server.store import MemoryStore


class Computing:
    """Holds every computation of a state, and counts them by client."""

    def __init__(self, download: Any) -> None:
        self._download = download
        self.free = asyncio.Event()
        self.running: Counter[int] = Counter()
        self.most: Counter[int] = Counter()

    async def __call__(self, client_id: int, *arguments: Any) -> Any:
        self.running[client_id] += 1
        self.most = self.most | self.running
        await self.free.wait()
        self.running[client_id] -= 1
        return await self._download(client_id, *arguments)


async def test_the_state_of_one_client_is_computed_once_at_a_time_and_others_do_not_wait(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemons = await join_all(server)
    computing = Computing(server.engine.aggregator.download)
    monkeypatch.setattr(server.engine.aggregator, "download", computing)
    greedy = [asyncio.create_task(daemons[0].download(0)) for _ in range(DEFAULT_LIMITS.downloads_per_client)]
    await asyncio.sleep(0)
    others = [asyncio.create_task(daemon.download(0)) for daemon in daemons[1:]]
    async with asyncio.timeout(10):
        while len(+computing.running) < len(daemons):  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0.001)
        computing.free.set()
        await asyncio.gather(*greedy, *others)
    assert computing.most == Counter({daemon.client_id: 1 for daemon in daemons})


async def test_a_download_whose_round_closes_while_it_waits_is_refused(tmp_path: Path) -> None:
    rules: dict[str, Any] = {"min_clients": 2, "limits": replace(DEFAULT_LIMITS, replies=1)}
    async with Server(MemoryStore(), tmp_path, **rules) as server:
        daemons = await join_all(server)
        for daemon in daemons[:2]:
            await daemon.work(0)
        async with server.coordinator._replies.turn(0):
            waiting = asyncio.create_task(daemons[2].download(0))
            await until_waited_for(server.coordinator._replies._free)  # it has been admitted
            await server.coordinator.report_failure(daemons[2].session, 0, pb.Failure(skips_round=True))
            await server.until_round(1)
        assert (await refusal_of(waiting)).reason == pb.REFUSAL_REASON_WRONG_ROUND


async def test_a_client_that_asks_without_end_waits_behind_others_between_two_turns() -> None:
    slots, order = FairSlots(1), list[int]()

    async def take(client_id: int) -> None:
        async with slots.turn(client_id):
            order.append(client_id)
            await asyncio.sleep(0)

    await asyncio.gather(*(take(0) for _ in range(3)), take(1), take(2))
    assert order == [0, 1, 2, 0, 0]
    assert not slots._by_client


async def test_the_download_of_a_superseded_session_ends(server: Server) -> None:
    for daemon in (daemons := await join_all(server)):
        await daemon.work(0)
    await server.until_round(1)
    parts = server.coordinator.download(daemons[0].session, 1)
    assert (await anext(parts)).HasField("manifest")
    reborn = await Daemon.join(server, 0, previous=daemons[0].secret)
    assert (await refusal_of(anext(parts))).reason == pb.REFUSAL_REASON_STALE_SESSION
    assert (await reborn.download(1)).prototypes is not None
