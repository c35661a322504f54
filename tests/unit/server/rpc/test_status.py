"""The status of a run."""

from __future__ import annotations

import pytest
from coordinator_runs import (
    CLIENTS,
    ROUNDS,
    Server,
    join_all,
    next_event,
    whole_run,
)

from feddbp.v1 import federation_pb2 as pb
from feddbp_server.rpc.status_reply import status_of


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


async def test_the_accuracy_that_is_shown_is_of_a_round_that_is_complete(server: Server) -> None:
    def shown() -> float | None:
        status = status_of(server.view)
        return status.mean_accuracy if status.HasField("mean_accuracy") else None

    daemons = await join_all(server)
    assert shown() is None
    await daemons[2].work(0)
    assert shown() == pytest.approx(0.2)  # better than nothing
    for daemon in daemons[:2]:
        await daemon.work(0)
    assert shown() == pytest.approx(0.1)
    await server.until_round(1)
    await daemons[2].report(1)
    assert shown() == pytest.approx(0.1)  # not what the quickest client has
    for daemon in daemons[:2]:
        await daemon.report(1)
    assert shown() == pytest.approx(0.2)


async def test_the_status_of_a_finished_run_says_how_it_ended(server: Server) -> None:
    await whole_run(server)
    status = status_of(server.view)
    assert (status.phase, status.round, status.reason) == (pb.PHASE_FINISHED, ROUNDS, "all rounds are done")
    assert status.mean_accuracy == pytest.approx(0.3)
