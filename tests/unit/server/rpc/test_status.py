"""The status of a run."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from coordinator_runs import (
    CLIENTS,
    CONFIG,
    ROUNDS,
    Server,
    join_all,
    next_event,
    whole_run,
)

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.run import RunConfig
from feddbp_server.rpc import control
from feddbp_server.rpc.auth import NoAuth
from feddbp_server.rpc.status_reply import status_of
from feddbp_server.run.admission.limits import DEFAULT_LIMITS
from feddbp_server.store import MemoryStore


async def test_the_status_shows_phase_round_and_missing_clients(server: Server) -> None:
    daemons = await join_all(server)
    events = [server.coordinator.follow(daemon.session) for daemon in daemons[:2]]
    for stream in events:
        await next_event(stream)
    await daemons[0].work(0)
    status = status_of(server.view)
    assert (status.phase, status.round, status.rounds) == (pb.PHASE_COLLECTING, 0, ROUNDS)
    assert (status.method, status.run_id, status.min_clients) == ("feddbp", server.engine.run_id, CLIENTS)
    assert list(status.missing) == [1, 2]
    assert [client.activity for client in status.clients] == [
        pb.CLIENT_ACTIVITY_UPLOADED,
        pb.CLIENT_ACTIVITY_TRAINING,
        pb.CLIENT_ACTIVITY_AWAY,
    ]
    first = status.clients[0]
    assert (first.classes_held, first.train_samples, first.test_samples) == (2, 10, 10)
    assert (first.metrics_round, first.metrics.test_samples) == (0, 10)
    assert not status.clients[1].HasField("metrics")
    assert (status.bytes_up, status.bytes_down) == (100, 10)
    assert not status.HasField("time_left")
    for stream in events:
        await stream.aclose()


async def test_the_status_of_a_careful_run_says_what_is_held_back(server: Server, tmp_path: Path) -> None:
    assert status_of(server.view).privacy == []
    careful = RunConfig.model_validate({**dict(CONFIG), "privacy": {"preset": "careful"}})
    async with Server(MemoryStore(), tmp_path / "careful", config=careful) as started:
        (sentence,) = status_of(started.view).privacy
    assert sentence.startswith("careful: prototypes of fewer than 5 samples stay with their client")


async def test_the_accuracy_that_is_shown_says_over_how_many_clients_it_is(server: Server) -> None:
    def shown() -> tuple[float | None, int]:
        status = status_of(server.view)
        accuracy = round(status.mean_accuracy, 6) if status.HasField("mean_accuracy") else None
        return accuracy, status.accuracy_clients

    daemons = await join_all(server)
    for daemon in daemons:
        await daemon.work(0)
        assert shown() == (None, 0)  # evaluated before its first training
    await server.until_round(1)
    for count, daemon in enumerate(daemons, 1):
        await daemon.report(1)
        assert shown() == ((0.1, 0.15, 0.2)[count - 1], count)
    client = status_of(server.view).clients[0]
    assert (client.is_trained, client.first_round, client.trained_rounds) == (True, 0, 2)


async def test_the_status_of_a_finished_run_says_how_it_ended(server: Server) -> None:
    await whole_run(server)
    status = status_of(server.view)
    assert (status.phase, status.round, status.reason) == (pb.PHASE_FINISHED, ROUNDS, "all rounds are done")
    assert status.mean_accuracy == pytest.approx(0.3)


async def test_a_change_after_a_long_wait_is_shown_without_a_long_rest(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    clock_reads, waits = itertools.count(1), asyncio.Event()

    def monotonic() -> float:
        if next(clock_reads) == 2:  # it reads the clock before and after a status, and then waits for a change
            waits.set()
        return now

    monkeypatch.setattr(control, "time", SimpleNamespace(monotonic=monotonic))
    service = control.ControlService(server.coordinator, identity=NoAuth(), limits=DEFAULT_LIMITS, events=server.events)
    context: Any = None
    statuses = service.WatchStatus(pb.WatchStatusRequest(), context)
    assert (await anext(statuses)).phase == pb.PHASE_WAITING
    following = asyncio.ensure_future(anext(statuses))
    await waits.wait()
    now += 3600
    rests: list[float] = []
    sleep = asyncio.sleep

    async def recorded(seconds: float) -> None:
        rests.append(seconds)
        await sleep(0)

    monkeypatch.setattr(control, "asyncio", SimpleNamespace(sleep=recorded))
    await server.coordinator.pause()
    assert (await following).phase == pb.PHASE_PAUSED
    assert rests == [DEFAULT_LIMITS.status_interval.total_seconds()]
