"""A whole run through the coordinator, over a store and without a network."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from coordinator_runs import (
    CLIENTS,
    CONFIG,
    PATIENCE,
    ROUNDS,
    Daemon,
    Server,
    accept,
    contribution,
    join_all,
    join_request,
    metrics,
    metrics_of,
    summary_of,
    whole_run,
)
from run_machine import ids

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.wire import Payload
from feddbp_server.rpc.status_reply import status_of
from feddbp_server.run.engine import Broadcast, RunEngine
from feddbp_server.run.refusals import RefusedError
from feddbp_server.run.state_machine import Phase
from feddbp_server.store import MemoryStore, RunMismatchError, SqliteStore


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with Server(MemoryStore(), tmp_path) as started:
        yield started


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Summary and metrics of a run nothing happened to."""
    directory = tmp_path_factory.mktemp("uninterrupted")

    async def run() -> None:
        async with Server(MemoryStore(), directory) as started:
            await whole_run(started)

    asyncio.run(run())
    return summary_of(directory), metrics_of(directory)


async def next_event(events: AsyncIterator[pb.RoundEvent]) -> pb.RoundEvent:
    return await asyncio.wait_for(anext(events), timeout=PATIENCE)


async def silent(events: AsyncIterator[pb.RoundEvent]) -> bool:
    """Whether nothing is pushed for a while; the stream is of no use afterwards."""
    try:
        await asyncio.wait_for(anext(events), timeout=0.05)
    except TimeoutError:
        return True
    return False


def activities(server: Server) -> dict[int, pb.ClientActivity.ValueType]:
    return {client.client_id: client.activity for client in status_of(server.view).clients}


async def refusal_of(call: Any) -> pb.Refusal:
    with pytest.raises(RefusedError) as refusal:
        await call
    return refusal.value.details


# --- from the first join to the end ---


async def test_a_run_goes_from_its_first_join_to_its_end_on_pushes_alone(server: Server, tmp_path: Path) -> None:
    heard: dict[int, list[str]] = {client_id: [] for client_id in range(CLIENTS)}

    async def live(client_id: int) -> None:
        daemon = await Daemon.join(server, client_id)
        async for event in server.coordinator.follow(daemon.session):
            kind = event.WhichOneof("event")
            assert kind is not None
            heard[client_id].append(kind)
            if kind == "round_opened":
                assert event.round_opened.selected
                await daemon.work(event.round_opened.round)
            elif kind == "final_evaluation":
                assert event.final_evaluation.round == ROUNDS
                await daemon.download(ROUNDS)
                await daemon.report(ROUNDS)
            elif kind == "run_ended":
                assert event.run_ended.outcome == pb.RUN_OUTCOME_FINISHED

    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*map(live, range(CLIENTS)))
        await server.coordinator.ended(linger=timedelta(seconds=PATIENCE))
    await server.settled()
    assert server.phase is Phase.FINISHED
    for kinds in heard.values():
        assert [kind for kind in kinds if kind != "waiting"] == [
            *["round_opened"] * ROUNDS,
            "final_evaluation",
            "run_ended",
        ]
    summary = summary_of(tmp_path)
    assert (summary["outcome"], summary["completed_rounds"]) == ("finished", ROUNDS)
    assert len(metrics_of(tmp_path)) == CLIENTS * (ROUNDS + 1)


async def test_clients_in_any_order_and_at_once_give_the_same_prototypes(
    tmp_path: Path, uninterrupted: tuple[dict[str, Any], list[dict[str, Any]]]
) -> None:
    async with Server(MemoryStore(), tmp_path) as server:
        daemons = (await join_all(server))[::-1]
        for number in range(ROUNDS):
            await asyncio.gather(*(daemon.work(number) for daemon in daemons))
            await server.until_round(number + 1)
        await asyncio.gather(*(daemon.report(ROUNDS) for daemon in daemons))
        await server.until_over()
    assert summary_of(tmp_path)["prototypes_sha256"] == uninterrupted[0]["prototypes_sha256"]
    assert metrics_of(tmp_path) == uninterrupted[1]


async def test_the_summary_is_of_this_run(server: Server, tmp_path: Path) -> None:
    await whole_run(server)
    summary = summary_of(tmp_path)
    assert summary["run_id"] == server.engine.run_id
    assert server.engine.run_id.startswith(f"{CONFIG.fingerprint}-")
    assert summary["prototypes_sha256"] == server.engine.aggregator.sha256
    assert summary["accuracy"]["last"]["weighted"] == (2 + 3 + 4) / 30
    assert [entry["architecture"] for entry in summary["per_client"]] == ["net0", "net1", "net2"]


async def test_two_runs_of_one_configuration_are_told_apart(tmp_path: Path) -> None:
    ids_seen = set()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        async with Server(MemoryStore(), tmp_path / name) as server:
            ids_seen.add(server.engine.run_id)
    assert len(ids_seen) == 2


async def test_the_first_download_is_empty_and_later_ones_are_personal(server: Server) -> None:
    daemons = await join_all(server)
    assert (await daemons[0].download(0)).prototypes is None
    for daemon in daemons:
        await daemon.work(0)
    await server.until_round(1)
    received = [await daemon.download(1) for daemon in daemons]
    vectors = {payload.prototypes.vectors.tobytes() for payload in received if payload.prototypes is not None}
    assert len(vectors) == CLIENTS
    assert all(payload.prototypes.class_ids.tolist() == [0, 1, 2, 3] for payload in received)


# --- uploads ---


async def test_the_same_upload_again_gets_the_same_receipt(server: Server) -> None:
    daemons = await join_all(server)
    first = await daemons[0].upload(0)
    again = await daemons[0].upload(0)
    assert (first.round, first.duplicate) == (0, False)
    assert (again.round, again.sha256, again.duplicate) == (0, first.sha256, True)
    assert server.engine.state.uploaded == ids(0)


async def test_the_same_upload_after_its_round_closed_gets_the_same_receipt(server: Server) -> None:
    daemons = await join_all(server)
    learnt = contribution(0, 0, Payload())
    first = await daemons[0].send(0, learnt)
    for daemon in daemons[1:]:
        await daemon.work(0)
    await server.until_round(1)
    again = await daemons[0].send(0, learnt)
    assert (again.sha256, again.duplicate) == (first.sha256, True)


async def test_another_upload_for_the_same_round_is_refused(server: Server) -> None:
    daemons = await join_all(server)
    first = await daemons[0].upload(0)
    refusal = await refusal_of(daemons[0].upload(0, salt=1))
    assert (refusal.reason, refusal.current_round) == (pb.REFUSAL_REASON_ALREADY_UPLOADED, 0)
    stored = await server.thread.run(lambda store: store.upload(0, 0))
    assert stored is not None
    assert stored.sha256 == first.sha256


@pytest.mark.parametrize("back_end", ["memory", "sqlite"])
async def test_of_two_uploads_at_once_one_is_stored_and_only_it_has_a_receipt(tmp_path: Path, back_end: str) -> None:
    store = MemoryStore() if back_end == "memory" else SqliteStore(tmp_path)
    async with Server(store, tmp_path) as server:
        daemons = await join_all(server)
        contributions = [contribution(0, 0, Payload(), salt=salt) for salt in (0, 0, 1)]
        answers = await asyncio.gather(
            *(accept(server, daemons[0], learnt) for learnt in contributions),
            return_exceptions=True,
        )
        stored = await server.thread.run(lambda store: store.upload(0, 0))
    assert stored is not None
    assert stored.sha256 == contributions[0].manifest.sha256
    first, twin, other = answers
    assert isinstance(first, pb.UploadReceipt)
    assert isinstance(twin, pb.UploadReceipt)
    assert (first.duplicate, twin.duplicate) == (False, True)
    assert isinstance(other, RefusedError)
    assert other.details.reason == pb.REFUSAL_REASON_ALREADY_UPLOADED


async def test_an_upload_to_a_closed_round_is_refused_with_the_open_one(server: Server) -> None:
    daemons = await join_all(server)
    for daemon in daemons:
        await daemon.work(0)
    await server.until_round(1)
    late = contribution(0, 0, Payload(), salt=5)
    await server.thread.run(lambda store: store._uploads.pop((0, 0)))  # it never arrived
    refusal = await refusal_of(daemons[0].send(0, late))
    assert (refusal.reason, refusal.current_round) == (pb.REFUSAL_REASON_WRONG_ROUND, 1)


# --- sessions ---


async def test_an_upload_under_a_superseded_session_is_refused(server: Server) -> None:
    daemons = await join_all(server)
    zombie = daemons[0]
    reborn = await Daemon.join(server, 0, previous=zombie.secret)
    assert reborn.session.epoch == 2
    assert (await refusal_of(zombie.upload(0))).reason == pb.REFUSAL_REASON_STALE_SESSION
    learnt = contribution(0, 0, Payload())
    accepting = accept(server, zombie, learnt)
    assert (await refusal_of(accepting)).reason == pb.REFUSAL_REASON_STALE_SESSION
    assert server.engine.state.uploaded == ids()
    assert not (await reborn.upload(0)).duplicate


async def test_a_second_daemon_with_the_same_id_is_refused(server: Server) -> None:
    await Daemon.join(server, 0)
    refusal = await refusal_of(Daemon.join(server, 0))
    assert refusal.reason == pb.REFUSAL_REASON_ID_IN_USE


async def test_of_two_daemons_that_claim_an_id_at_once_one_gets_it(server: Server) -> None:
    answers = await asyncio.gather(*(Daemon.join(server, 0) for _ in range(5)), return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, RefusedError)]
    (winner,) = [answer for answer in answers if isinstance(answer, Daemon)]
    assert {refusal.details.reason for refusal in refused} == {pb.REFUSAL_REASON_ID_IN_USE}
    assert server.engine.sessions.resolve(winner.secret) is winner.session
    assert winner.session.epoch == 1


async def test_the_stream_of_a_superseded_session_ends(server: Server) -> None:
    first = await Daemon.join(server, 0)
    events = server.coordinator.follow(first.session)
    await next_event(events)
    waiting = asyncio.create_task(anext(events))
    await asyncio.sleep(0)
    await Daemon.join(server, 0, previous=first.secret)
    assert (await refusal_of(waiting)).reason == pb.REFUSAL_REASON_STALE_SESSION


async def test_the_end_of_an_old_stream_does_not_disconnect_the_new_session(server: Server) -> None:
    first = await Daemon.join(server, 0)
    old = server.coordinator.follow(first.session)
    await next_event(old)
    second = await Daemon.join(server, 0, previous=first.secret)
    new = server.coordinator.follow(second.session)
    await next_event(new)
    await old.aclose()
    await server.settled()
    assert 0 in server.engine.state.connected
    await new.aclose()


async def test_a_session_without_a_stream_is_not_connected_whatever_the_one_before_it_had(server: Server) -> None:
    old = await Daemon.join(server, 0)
    stream = server.coordinator.follow(old.session)
    await anext(stream)
    await Daemon.join(server, 0, previous=old.secret)
    with pytest.raises(RefusedError):
        await anext(stream)
    await server.settled()
    assert 0 not in server.engine.state.connected


async def test_an_id_is_free_at_once_after_its_client_left(server: Server) -> None:
    daemon = await Daemon.join(server, 0)
    await server.coordinator.leave(daemon.session, "bye")
    assert 0 not in server.engine.state.members
    again = await Daemon.join(server, 0)
    assert again.session.epoch == 2
    assert 0 in server.engine.state.members


async def test_an_id_is_free_at_once_even_if_its_client_left_with_a_stream_open(server: Server) -> None:
    daemon = await Daemon.join(server, 0)
    events = server.coordinator.follow(daemon.session)
    await next_event(events)
    await server.coordinator.leave(daemon.session, "bye")
    await events.aclose()
    await server.settled()
    again = await Daemon.join(server, 0)
    assert again.session.epoch == 2


async def test_the_stream_of_a_client_that_left_ends(server: Server) -> None:
    daemon = await Daemon.join(server, 0)
    events = server.coordinator.follow(daemon.session)
    await next_event(events)
    waiting = asyncio.create_task(anext(events))
    await asyncio.sleep(0)
    await server.coordinator.leave(daemon.session, "bye")
    done, _ = await asyncio.wait([waiting], timeout=1)
    assert done, "the stream stays open"
    assert isinstance(waiting.exception(), StopAsyncIteration | RefusedError)


async def test_whoever_left_is_still_gone_after_a_restart(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Server(store, tmp_path) as server:
        leaving, staying = await Daemon.join(server, 0), await Daemon.join(server, 1)
        await server.coordinator.leave(leaving.session, "bye")
        assert activities(server) == {0: pb.CLIENT_ACTIVITY_LEFT, 1: pb.CLIENT_ACTIVITY_AWAY}
    async with Server(store, tmp_path) as restarted:
        assert restarted.engine.state.members == ids(1)
        assert activities(restarted) == {0: pb.CLIENT_ACTIVITY_LEFT, 1: pb.CLIENT_ACTIVITY_AWAY}
        staying.moved_to(restarted)
        with pytest.raises(RefusedError, match="this session is unknown"):
            leaving.moved_to(restarted)
        assert (await Daemon.join(restarted, 0)).session.epoch == 2


async def test_leaving_twice_does_not_throw_out_whoever_took_the_id_in_between(server: Server) -> None:
    first = await Daemon.join(server, 0)
    await server.coordinator.leave(first.session, "bye")
    second = await Daemon.join(server, 0)
    await server.coordinator.leave(first.session, "bye again")
    assert 0 in server.engine.state.members
    assert server.engine.sessions.is_current(second.session)


async def test_a_round_everyone_chosen_has_left_is_told_and_waits_for_clients(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Server(MemoryStore(), tmp_path, participation=0.5, min_clients=2, deadline=1000) as server:
        await server.coordinator.pause()  # or the round would open for the first two
        daemons = {daemon.client_id: daemon for daemon in await join_all(server)}
        await server.coordinator.resume()
        (observer,) = server.engine.state.observers
        for client_id in sorted(server.engine.state.selected):
            await server.coordinator.leave(daemons[client_id].session, "bye")
        assert server.phase is Phase.WAITING
        assert server.engine.state.members == ids(observer)
        assert (
            server.engine.event_log.incidents[-1].message
            == "round 0 opens again: every client selected for it has left"
        )
    assert "round 0: every client selected for it has left; it opens again as soon as enough have joined" in caplog.text


async def test_a_run_that_is_over_admits_nobody(server: Server) -> None:
    await server.coordinator.stop("enough")
    assert (await refusal_of(Daemon.join(server, 0))).reason == pb.REFUSAL_REASON_RUN_ENDED


# --- following ---


async def test_a_stream_begins_with_where_the_run_stands(server: Server) -> None:
    daemons = await join_all(server)
    event = await next_event(server.coordinator.follow(daemons[1].session))
    assert (event.round_opened.round, event.round_opened.selected) == (0, True)


async def test_nothing_is_pushed_twice(server: Server) -> None:
    daemons = await join_all(server)
    events = server.coordinator.follow(daemons[1].session)
    await next_event(events)
    await daemons[0].work(0)
    await daemons[0].report(0)
    assert await silent(events)


async def test_a_slow_follower_hears_of_the_newest_state_only(server: Server) -> None:
    daemons = await join_all(server)
    events = server.coordinator.follow(daemons[0].session)
    assert (await next_event(events)).round_opened.round == 0
    for number in range(ROUNDS):
        for daemon in daemons:
            await daemon.work(number)
        await server.until_round(number + 1)
    assert (await next_event(events)).final_evaluation.round == ROUNDS


async def test_an_open_stream_is_the_sign_of_life(server: Server) -> None:
    daemon = await Daemon.join(server, 0)
    assert server.engine.state.connected == ids()
    events = server.coordinator.follow(daemon.session)
    await next_event(events)
    assert server.engine.state.connected == ids(0)
    await events.aclose()
    await server.settled()
    assert server.engine.state.connected == ids()
    assert server.engine.state.members == ids(0)


async def test_late_joiners_wait_for_the_next_round(tmp_path: Path) -> None:
    async with Server(MemoryStore(), tmp_path, min_clients=2) as server:
        early = [await Daemon.join(server, 0), await Daemon.join(server, 1)]
        late = await Daemon.join(server, 2)
        events = server.coordinator.follow(late.session)
        assert (await next_event(events)).WhichOneof("event") == "waiting"
        assert (await refusal_of(late.upload(0))).reason == pb.REFUSAL_REASON_NOT_SELECTED
        for daemon in early:
            await daemon.work(0)
        opened = (await next_event(events)).round_opened
        assert (opened.round, opened.selected) == (1, True)
        await events.aclose()


async def test_followers_are_told_when_the_server_goes_away(tmp_path: Path) -> None:
    async with Server(MemoryStore(), tmp_path) as server:
        daemon = await Daemon.join(server, 0)
        events = server.coordinator.follow(daemon.session)
        await next_event(events)
        draining = asyncio.create_task(server.engine.drain())
        assert (await next_event(events)).WhichOneof("event") == "server_draining"
        with pytest.raises(StopAsyncIteration):
            await next_event(events)
        await draining


async def test_the_server_waits_until_every_member_was_told_of_the_end(server: Server) -> None:
    daemons = await join_all(server)
    await server.coordinator.stop("enough")
    ended = asyncio.create_task(server.coordinator.ended(linger=timedelta(seconds=PATIENCE)))
    for daemon in daemons:
        await asyncio.sleep(0)
        assert not ended.done()
        async for event in server.coordinator.follow(daemon.session):
            assert event.run_ended.reason == "enough"
    await asyncio.wait_for(ended, timeout=PATIENCE)


async def test_the_server_does_not_wait_for_ever_for_those_who_are_away(server: Server) -> None:
    await join_all(server)
    await server.coordinator.stop("enough")
    await asyncio.wait_for(server.coordinator.ended(linger=timedelta(seconds=0.05)), timeout=PATIENCE)


async def test_no_change_is_missed_between_looking_and_waiting() -> None:
    broadcast = Broadcast()
    upcoming = broadcast.upcoming()
    broadcast.publish()
    await asyncio.wait_for(upcoming.wait(), timeout=1)
    assert not broadcast.upcoming().is_set()


# --- reports ---


async def test_the_same_results_again_are_counted_once(server: Server, tmp_path: Path) -> None:
    daemons = await join_all(server)
    for _ in range(3):
        await daemons[0].report(0)
    other = metrics(0, 0)
    other.accuracies[0].correct = 9
    await server.coordinator.report_metrics(daemons[0].session, 0, other)
    (line,) = metrics_of(tmp_path)
    assert line["accuracy"] == 0.0
    assert server.engine.metrics_log.traffic.up == 100


async def test_results_of_a_round_to_come_are_refused(server: Server) -> None:
    daemons = await join_all(server)
    assert (await refusal_of(daemons[0].report(1))).reason == pb.REFUSAL_REASON_WRONG_ROUND


async def test_progress_and_failures_are_shown(server: Server) -> None:
    daemons = await join_all(server)
    server.coordinator.report_progress(daemons[1].session, pb.Progress(epochs_done=2, epochs=10))
    server.coordinator.report_failure(daemons[2].session, 0, "out of memory " + "x" * 10_000)
    status = status_of(server.view)
    assert (status.clients[1].progress.epochs_done, status.clients[1].progress.epochs) == (2, 10)
    (incident,) = status.incidents
    assert incident.client_id == 2
    assert incident.message.startswith("failed in round 0: out of memory")
    assert len(incident.message) < 600


async def test_only_the_newest_incidents_are_kept(server: Server) -> None:
    for number in range(100):
        server.engine.event_log.incident(None, str(number))
    shown = [incident.message for incident in status_of(server.view).incidents]
    assert shown == [str(number) for number in range(80, 100)]


# --- status ---


async def test_the_status_says_where_the_run_stands_and_who_is_missing(server: Server) -> None:
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


# --- deadlines ---


async def hurry(server: Server, seconds: float, *, min_clients: int = CLIENTS) -> None:
    """From here on the open round has only so much time; what was to be done in it is done by now."""
    await server.coordinator.pause()
    deadline = timedelta(seconds=seconds)
    server.engine.policy = replace(server.engine.policy, deadline=deadline, min_clients=min_clients)
    await server.coordinator.resume()


async def test_the_deadline_is_a_timer_and_needs_no_traffic(tmp_path: Path) -> None:
    async with Server(MemoryStore(), tmp_path) as server:
        daemons = await join_all(server)
        for daemon in daemons[:2]:
            await daemon.work(0)
        assert server.engine.state.missing == ids(2)
        await hurry(server, 0.05, min_clients=2)
        await server.until(lambda run: run.state.round == 1)
        assert server.engine.state.members == ids(0, 1)


async def test_a_round_nobody_contributes_to_is_extended_and_then_fails_naming_the_missing(tmp_path: Path) -> None:
    async with Server(MemoryStore(), tmp_path, max_extensions=2) as server:
        daemons = await join_all(server)
        await daemons[1].work(0)
        await hurry(server, 0.02)
        await server.until_over()
        status = status_of(server.view)
    assert status.phase == pb.PHASE_FAILED
    assert "missing: client 0, client 2" in status.reason
    extended = [incident.message for incident in status.incidents]
    assert extended == ["round 0 extended; missing: client 0, client 2"] * 2
    assert summary_of(tmp_path)["outcome"] == "failed"
    assert summary_of(tmp_path)["completed_rounds"] == 0


async def test_the_time_that_is_left_is_shown(tmp_path: Path) -> None:
    async with Server(MemoryStore(), tmp_path, deadline=100) as server:
        await join_all(server)
        left = status_of(server.view).time_left.ToTimedelta().total_seconds()
        assert 95 < left <= 100


# --- operators ---


async def test_a_paused_run_takes_uploads_but_closes_no_round(server: Server) -> None:
    daemons = await join_all(server)
    await server.coordinator.pause()
    for daemon in daemons:
        await daemon.work(0)
    await server.settled()
    assert (server.phase, server.engine.state.round) == (Phase.PAUSED, 0)
    await server.coordinator.resume()
    await server.until_round(1)


async def test_stopping_a_paused_run_is_not_noted_as_resuming_it(server: Server, tmp_path: Path) -> None:
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


async def test_a_stop_during_aggregation_leaves_one_truth_about_the_prototypes(
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


async def test_a_stopped_run_tells_everyone_why(server: Server, tmp_path: Path) -> None:
    daemons = await join_all(server)
    events = server.coordinator.follow(daemons[0].session)
    await next_event(events)
    await server.coordinator.stop("enough")
    ended = (await next_event(events)).run_ended
    assert (ended.outcome, ended.reason) == (pb.RUN_OUTCOME_STOPPED, "enough")
    await server.until_over()
    assert summary_of(tmp_path)["outcome"] == "stopped"


# --- failures ---


async def test_a_strategy_that_fails_fails_the_run_with_its_reason(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> Payload:
        raise ArithmeticError("cannot count to three")

    monkeypatch.setattr(server.engine.aggregator._strategy, "aggregate", broken)
    daemons = await join_all(server)
    events = server.coordinator.follow(daemons[0].session)
    await next_event(events)
    for daemon in daemons:
        await daemon.work(0)
    ended = (await next_event(events)).run_ended
    assert ended.outcome == pb.RUN_OUTCOME_FAILED
    assert ended.reason == "round 0 could not be closed: cannot count to three"
    await server.until_over()
    summary = summary_of(tmp_path)
    assert (summary["outcome"], summary["reason"], summary["completed_rounds"]) == ("failed", ended.reason, 0)


class FailingStore(MemoryStore):
    """Refuses to keep contributions while told to."""

    failing = True

    def save_upload(self, record: Any, body: bytes) -> None:
        if self.failing:
            raise OSError("no space left on device")
        super().save_upload(record, body)


async def test_an_upload_that_could_not_be_stored_has_no_receipt_and_can_be_sent_again(tmp_path: Path) -> None:
    store = FailingStore()
    async with Server(store, tmp_path) as server:
        daemons = await join_all(server)
        with pytest.raises(OSError, match="no space left"):
            await daemons[0].upload(0)
        assert server.engine.state.uploaded == ids()
        store.failing = False
        assert not (await daemons[0].upload(0)).duplicate


# --- restarts ---

Result = tuple[dict[str, Any], list[dict[str, Any]]]


async def run_with_restart(store: MemoryStore | SqliteStore, directory: Path, *, after: int, rejoin: bool) -> None:
    """The whole run, but the server is another one after so many reports and uploads."""
    server = Server(store, directory)
    await server.engine.start()
    daemons = await join_all(server)
    steps = 0

    async def another_server() -> None:
        nonlocal server, daemons, store
        await server.crash()
        if isinstance(store, SqliteStore):
            store = SqliteStore(directory)
        server = Server(store, directory)
        await server.engine.start()
        if rejoin:
            daemons = [await Daemon.join(server, daemon.client_id, previous=daemon.secret) for daemon in daemons]
        else:
            daemons = [daemon.moved_to(server) for daemon in daemons]

    async def stepped() -> None:
        nonlocal steps
        steps += 1
        if steps == after:
            await another_server()

    for number in range(ROUNDS):
        for client_id in range(CLIENTS):
            await daemons[client_id].report(number)
            await stepped()
            await daemons[client_id].upload(number)
            await stepped()
        await server.until_round(number + 1)
    for client_id in range(CLIENTS):
        await daemons[client_id].report(ROUNDS)
        await stepped()
    await server.until_over()
    await server.crash()


@pytest.mark.parametrize("after", range(1, 2 * CLIENTS * ROUNDS + CLIENTS))
async def test_a_restart_at_any_moment_changes_nothing_of_the_outcome(
    tmp_path: Path, uninterrupted: Result, after: int
) -> None:
    await run_with_restart(MemoryStore(), tmp_path, after=after, rejoin=bool(after % 2))
    summary = summary_of(tmp_path)
    assert summary["prototypes_sha256"] == uninterrupted[0]["prototypes_sha256"]
    assert (summary["outcome"], summary["curve"]) == ("finished", uninterrupted[0]["curve"])
    assert metrics_of(tmp_path) == uninterrupted[1]


async def test_a_restart_from_disk_changes_nothing_of_the_outcome(tmp_path: Path, uninterrupted: Result) -> None:
    await run_with_restart(SqliteStore(tmp_path), tmp_path, after=8, rejoin=True)
    assert summary_of(tmp_path)["prototypes_sha256"] == uninterrupted[0]["prototypes_sha256"]
    assert metrics_of(tmp_path) == uninterrupted[1]


async def test_a_restarted_server_goes_on_where_it_was_with_the_run_it_had(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Server(store, tmp_path) as first:
        daemons = await join_all(first)
        await daemons[1].work(0)
        run_id = first.engine.run_id
    async with Server(store, tmp_path) as second:
        assert second.engine.run_id == run_id
        state = second.engine.state
        assert (state.phase, state.round, state.uploaded, state.reported) == (Phase.COLLECTING, 0, ids(1), ids(1))
        assert state.members == ids(0, 1, 2)
        assert state.connected == ids()


async def test_a_paused_run_is_paused_after_a_restart(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Server(store, tmp_path, deadline=100) as first:
        await join_all(first)
        await first.coordinator.pause()
    async with Server(store, tmp_path, deadline=100) as second:
        assert (second.phase, second.engine.state.held_phase) == (Phase.PAUSED, Phase.COLLECTING)
        assert second.engine.state.deadline is None
        await second.coordinator.resume()
        assert second.phase is Phase.COLLECTING
        assert second.engine.state.deadline is not None


async def test_a_restart_sets_the_deadline_anew(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Server(store, tmp_path, min_clients=1, deadline=100) as first:
        await Daemon.join(first, 0)
    async with Server(store, tmp_path, min_clients=1, deadline=0.05) as second:
        await second.until(lambda run: run.state.extensions == 1)


async def test_a_finished_run_stays_finished_and_its_summary_is_there_again(
    tmp_path: Path, uninterrupted: Result
) -> None:
    store = MemoryStore()
    async with Server(store, tmp_path) as first:
        await whole_run(first)
    (tmp_path / "summary.json").unlink()
    async with Server(store, tmp_path) as second:
        assert second.phase is Phase.FINISHED
        daemon = second.engine.sessions.get(0)
        assert daemon is not None
        events = [event async for event in second.coordinator.follow(daemon)]
    assert [event.run_ended.outcome for event in events] == [pb.RUN_OUTCOME_FINISHED]
    assert summary_of(tmp_path)["prototypes_sha256"] == uninterrupted[0]["prototypes_sha256"]


async def test_another_configuration_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Server(store, tmp_path):
        pass
    other = CONFIG.model_copy(update={"rounds": 7})
    with pytest.raises(RunMismatchError, match="rounds is 2 there and 7 here"):
        async with Server(store, tmp_path, config=other):
            pass


async def test_what_decides_who_trains_is_part_of_the_configuration(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Server(store, tmp_path, config=CONFIG.model_copy(update={"participation": 0.5})):
        pass
    with pytest.raises(RunMismatchError, match=r"participation is 0\.5 there and 1\.0 here"):
        async with Server(store, tmp_path):
            pass


async def test_metrics_of_an_earlier_run_in_the_directory_are_not_mixed_with_this_one(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"client": 0, "round": 0, "accuracy": 1.0}\n')
    async with Server(MemoryStore(), tmp_path) as server:
        daemons = await join_all(server)
        await daemons[2].report(0)
    (line,) = metrics_of(tmp_path)
    assert line["client"] == 2


async def test_uploads_that_nobody_needs_any_more_are_forgotten(server: Server) -> None:
    await whole_run(server)
    await server.settled()
    kept = await server.thread.run(lambda store: [len(store.uploads(number)) for number in range(ROUNDS)])
    assert kept == [0, CLIENTS]


async def test_joining_asks_for_the_right_run(server: Server) -> None:
    request = join_request(server.coordinator, 0)
    request.run_id = "another"
    assert (await refusal_of(server.coordinator.join(request))).reason == pb.REFUSAL_REASON_OTHER_RUN
