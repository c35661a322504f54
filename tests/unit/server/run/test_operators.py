"""Pausing, resuming and stopping a run."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from coordinator_runs import (
    PATIENCE,
    Server,
    join_all,
    next_event,
    summary_of,
)

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.wire import Payload
from feddbp_server.run.engine import RunEngine
from feddbp_server.run.state_machine.state import Phase
from feddbp_server.store import MemoryStore


async def test_a_paused_run_accepts_uploads_but_closes_no_round(server: Server) -> None:
    daemons = await join_all(server)
    await server.coordinator.pause()
    for daemon in daemons:
        await daemon.work(0)
    await server.settled()
    assert (server.phase, server.engine.state.round) == (Phase.PAUSED, 0)
    await server.coordinator.resume()
    await server.until_round(1)


async def test_stopping_a_paused_run_is_not_audited_as_resuming_it(server: Server, tmp_path: Path) -> None:
    await join_all(server)
    await server.coordinator.pause()
    await server.coordinator.stop("enough")
    noted = [json.loads(line)["what"] for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert noted[-2:] == ["paused", "ended"]


class HeldStrategy:
    """Lets a test decide when, and whether, a round is aggregated."""

    def __init__(self, engine: RunEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        aggregate = engine.aggregator._strategy.aggregate

        def held(*args: Any, **options: Any) -> Payload:
            self.entered.set()
            assert self.opened.wait(PATIENCE)
            return aggregate(*args, **options)

        monkeypatch.setattr(engine.aggregator._strategy, "aggregate", held)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, PATIENCE)


async def test_a_pause_during_aggregation_opens_the_next_round_only_after_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = HeldStrategy(server.engine, monkeypatch)
    daemons = await join_all(server)
    for daemon in daemons:
        await daemon.work(0)
    await strategy.reached()
    await server.coordinator.pause()
    strategy.opened.set()
    await server.until(lambda run: run.state.round == 1)
    assert server.phase is Phase.PAUSED
    events = server.coordinator.follow(daemons[0].session)
    assert "paused" in (await next_event(events)).waiting.reason
    await server.coordinator.resume()
    assert (await next_event(events)).round_opened.round == 1
    await events.aclose()


async def test_a_stop_during_aggregation_leaves_summary_and_store_consistent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    async with Server(store, tmp_path) as server:
        strategy = HeldStrategy(server.engine, monkeypatch)
        for daemon in await join_all(server):
            await daemon.work(0)
        await strategy.reached()
        await server.coordinator.stop("enough")
        await asyncio.sleep(0.05)  # the summary is written while the strategy still computes
        strategy.opened.set()
        await server.until_over()
        written = summary_of(tmp_path)
    async with Server(store, tmp_path) as restarted:
        assert restarted.phase is Phase.STOPPED
        again = summary_of(tmp_path)
    assert (written["outcome"], written["reason"]) == ("stopped", "enough")
    assert (again["completed_rounds"], again["prototypes_sha256"]) == (
        written["completed_rounds"],
        written["prototypes_sha256"],
    )


async def test_a_stopped_run_sends_its_reason(server: Server, tmp_path: Path) -> None:
    daemons = await join_all(server)
    events = server.coordinator.follow(daemons[0].session)
    await next_event(events)
    await server.coordinator.stop("enough")
    ended = (await next_event(events)).run_ended
    assert (ended.outcome, ended.reason) == (pb.RUN_OUTCOME_STOPPED, "enough")
    await server.until_over()
    assert summary_of(tmp_path)["outcome"] == "stopped"
