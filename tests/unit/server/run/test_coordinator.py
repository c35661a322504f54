"""What clients may ask of a run: sessions, event streams and reports."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from coordinator_runs import (
    CONFIG,
    PATIENCE,
    ROUNDS,
    Daemon,
    Server,
    accept,
    activities,
    as_sent,
    join_all,
    join_request,
    metrics,
    metrics_of,
    next_event,
    refusal_of,
    trained_upload,
    until_waited_for,
    whole_run,
)
from run_machine import ids

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.artifacts import AUDIT_NAME
from feddbp_common.wire import Payload
from feddbp_server.rpc.status_reply import status_of
from feddbp_server.run.admission.limits import DEFAULT_LIMITS
from feddbp_server.run.admission.refusals import RefusedError
from feddbp_server.run.pushed_states import EventWithState
from feddbp_server.run.state_machine.state import Phase
from feddbp_server.store import MemoryStore

AT_ONCE = replace(DEFAULT_LIMITS, disconnection_wait=timedelta(0))


async def silent(events: AsyncIterator[pb.RoundEvent | EventWithState]) -> bool:
    """Whether nothing is pushed for a while; the stream is of no use afterwards."""
    try:
        await asyncio.wait_for(anext(events), timeout=0.05)
    except TimeoutError:
        return True
    return False


# --- sessions ---


async def test_joining_another_run_is_refused(server: Server) -> None:
    request = join_request(server.coordinator, 0)
    request.run_id = "another"
    assert (await refusal_of(server.coordinator.join(request))).reason == pb.REFUSAL_REASON_OTHER_RUN


async def test_an_upload_under_a_superseded_session_is_refused(server: Server) -> None:
    daemons = await join_all(server)
    zombie = daemons[0]
    reborn = await Daemon.join(server, 0, previous=zombie.secret)
    assert reborn.session.epoch == 2
    assert (await refusal_of(zombie.upload(0))).reason == pb.REFUSAL_REASON_STALE_SESSION
    encoded = trained_upload(0, 0, Payload())
    accepting = accept(server, zombie, encoded)
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


async def test_joins_of_one_id_that_wait_for_each_other_are_limited(server: Server) -> None:
    most = DEFAULT_LIMITS.joins_per_client
    async with server.engine.sessions.lock_of(0):  # as while the first of them is being stored
        waiting = [asyncio.create_task(Daemon.join(server, 0)) for _ in range(most)]
        await until_waited_for(server.engine.sessions.lock_of(0), callers=most)
        async with asyncio.timeout(PATIENCE):
            refusal = await refusal_of(Daemon.join(server, 0))
        assert refusal.reason == pb.REFUSAL_REASON_BUSY
        await Daemon.join(server, 1)  # of another id, none is refused
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert sum(isinstance(answer, Daemon) for answer in answers) == 1


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


async def test_the_stream_of_a_client_that_left_ends_without_a_refusal(server: Server) -> None:
    daemon = await Daemon.join(server, 0)
    events = server.coordinator.follow(daemon.session)
    await next_event(events)
    await server.coordinator.leave(daemon.session, "done for today")
    with pytest.raises(StopAsyncIteration):
        await next_event(events)


async def test_a_client_that_is_blocked_in_the_final_evaluation_is_not_done(server: Server) -> None:
    daemons = await join_all(server)
    for number in range(ROUNDS):
        for daemon in daemons:
            await daemon.work(number)
        await server.until_round(number + 1)
    for daemon in daemons[:2]:
        await daemon.report(ROUNDS)
    await server.coordinator.block(daemons[0].client_id, "enough")
    assert activities(server)[daemons[0].client_id] == pb.CLIENT_ACTIVITY_BLOCKED
    assert activities(server)[daemons[1].client_id] == pb.CLIENT_ACTIVITY_DONE


async def test_a_client_that_left_has_left_after_a_restart_too(tmp_path: Path) -> None:
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


async def test_leaving_twice_does_not_end_a_session_that_joined_in_between(server: Server) -> None:
    first = await Daemon.join(server, 0)
    await server.coordinator.leave(first.session, "bye")
    second = await Daemon.join(server, 0)
    await server.coordinator.leave(first.session, "bye again")
    assert 0 in server.engine.state.members
    assert server.engine.sessions.is_current(second.session)


async def test_a_round_whose_selected_clients_have_all_left_is_reported_and_waits_for_clients(
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
        (*_, incident) = server.engine.event_log.incidents
        assert incident.message == "round 1/2 opens again: every client selected for it has left"
    assert (
        "round 1/2: every client selected for it has left; it opens again as soon as enough have joined" in caplog.text
    )


async def test_a_run_that_is_over_refuses_joins(server: Server) -> None:
    await server.coordinator.stop("enough")
    assert (await refusal_of(Daemon.join(server, 0))).reason == pb.REFUSAL_REASON_RUN_ENDED


# --- following ---


async def test_an_event_stream_begins_with_the_current_state(server: Server) -> None:
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


async def test_a_slow_follower_receives_the_newest_state_only(server: Server) -> None:
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


async def test_event_streams_end_with_a_notice_when_the_server_drains(tmp_path: Path) -> None:
    async with Server(MemoryStore(), tmp_path) as server:
        daemon = await Daemon.join(server, 0)
        events = server.coordinator.follow(daemon.session)
        await next_event(events)
        draining = asyncio.create_task(server.engine.drain())
        assert (await next_event(events)).WhichOneof("event") == "server_draining"
        with pytest.raises(StopAsyncIteration):
            await next_event(events)
        await draining


async def test_the_server_waits_until_every_member_has_received_the_end(server: Server) -> None:
    daemons = await join_all(server)
    await server.coordinator.stop("enough")
    ended = asyncio.create_task(server.coordinator.ended(linger=timedelta(seconds=PATIENCE)))
    for daemon in daemons:
        await asyncio.sleep(0)
        assert not ended.done()
        async for event in server.coordinator.follow(daemon.session):
            assert as_sent(event).run_ended.reason == "enough"
    await asyncio.wait_for(ended, timeout=PATIENCE)


async def test_the_server_waits_a_limited_time_for_disconnected_members(server: Server) -> None:
    await join_all(server)
    await server.coordinator.stop("enough")
    await asyncio.wait_for(server.coordinator.ended(linger=timedelta(seconds=0.05)), timeout=PATIENCE)


class LogLines(logging.Handler):
    """The lines of the server's log with a word in them, to be waited for."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._word = word
        self._arrived = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._word in record.getMessage():
            self.lines.append(record.getMessage())
            self._arrived.set()

    async def first(self, count: int) -> list[str]:
        async with asyncio.timeout(PATIENCE):
            while len(self.lines) < count:
                await self._arrived.wait()
                self._arrived.clear()
        return self.lines[:count]


@contextmanager
def logged(word: str) -> Iterator[LogLines]:
    log, lines = logging.getLogger("feddbp.server"), LogLines(word)
    level = log.level
    log.setLevel(logging.INFO)
    log.addHandler(lines)
    try:
        yield lines
    finally:
        log.removeHandler(lines)
        log.setLevel(level)


async def test_a_finished_server_says_for_whom_it_waits(tmp_path: Path) -> None:
    async with Server(MemoryStore(), tmp_path, limits=AT_ONCE) as server:
        daemons = await join_all(server)
        await server.coordinator.stop("enough")
        with logged("to receive the end") as waiting:
            ended = asyncio.create_task(server.coordinator.ended(linger=timedelta(seconds=PATIENCE)))
            (line,) = await waiting.first(1)
        assert "for clients 0-2 to receive the end of the run" in line
        for daemon in daemons:
            _ = [event async for event in server.coordinator.follow(daemon.session)]
        await asyncio.wait_for(ended, PATIENCE)


async def test_a_run_that_is_over_for_all_is_not_waited_for_after_a_restart(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Server(store, tmp_path, limits=AT_ONCE) as server:
        daemons = await join_all(server)
        await server.coordinator.stop("enough")
        for daemon in daemons[:-1]:
            _ = [event async for event in server.coordinator.follow(daemon.session)]
        assert server.coordinator.not_notified == {daemons[-1].client_id}
        await server.coordinator.save_end_received()
    async with Server(store, tmp_path, limits=AT_ONCE) as server:
        assert server.coordinator.not_notified == {daemons[-1].client_id}
        session = server.coordinator.sessions.get(daemons[-1].client_id)
        assert session is not None
        _ = [event async for event in server.coordinator.follow(session)]
        await server.coordinator.save_end_received()
    async with Server(store, tmp_path, limits=AT_ONCE) as server:
        with logged("waiting up to") as waiting:
            async with asyncio.timeout(PATIENCE):
                await server.coordinator.ended(linger=timedelta(days=1))
        assert not waiting.lines


async def test_who_has_received_an_end_waits_for_that_of_the_extended_run(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Server(store, tmp_path) as server:
        await whole_run(server)
        for session in server.coordinator.sessions.all():
            _ = [event async for event in server.coordinator.follow(session)]
        await server.coordinator.save_end_received()
        assert server.engine.state.informed
    longer = CONFIG.model_copy(update={"rounds": ROUNDS + 1})
    async with Server(store, tmp_path, config=longer) as server:
        assert not server.engine.state.informed


async def test_a_server_that_goes_on_saves_nobodys_end(server: Server) -> None:
    await join_all(server)
    before = server.engine.state
    await server.coordinator.save_end_received()
    assert server.engine.state == before


# --- lost clients ---


async def follow_once(server: Server, daemon: Daemon) -> None:
    """Opens an event stream and closes it as a client does that is killed."""
    events = server.coordinator.follow(daemon.session, peer="ipv4:10.0.0.7:99")
    await next_event(events)
    await events.aclose()


async def test_a_lost_client_is_reported_with_the_round_that_waits_for_it(tmp_path: Path) -> None:
    async with Server(MemoryStore(), tmp_path, limits=AT_ONCE, deadline=3600) as server:
        daemons = await join_all(server)
        await daemons[1].work(0)
        with logged("disconnected") as lost:
            for daemon in daemons[:2]:
                await follow_once(server, daemon)
            awaited, done = sorted(await lost.first(2))
    assert awaited.startswith("client 0 is disconnected; round 1/2 waits for it, for ")
    assert done == "client 1 is disconnected"
    audit = [json.loads(line) for line in (tmp_path / AUDIT_NAME).read_text().splitlines()]
    peers = [(line["client"], line["peer"]) for line in audit if line["what"] == "disconnected"]
    assert sorted(peers) == [(0, "ipv4:10.0.0.7:99"), (1, "ipv4:10.0.0.7:99")]


async def test_a_client_that_left_or_is_back_is_not_reported_as_lost(server: Server) -> None:
    left, back, lost = await join_all(server)
    with logged("disconnected") as reported:
        for daemon in (left, back, lost):
            await follow_once(server, daemon)
        await server.coordinator.leave(left.session, "stopped by its operator")
        back_again = server.coordinator.follow(back.session)
        await next_event(back_again)
        for daemon in (left, back, lost):
            server.coordinator._report_disconnection(daemon.session)  # as its timer does, later
        await back_again.aclose()
    assert reported.lines == ["client 2 is disconnected; round 1/2 waits for it"]


SOON_LOST = replace(DEFAULT_LIMITS, lost_after=timedelta(seconds=0.3))


async def test_a_client_that_does_not_return_after_a_restart_of_the_server_is_lost(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Server(store, tmp_path) as server:
        await join_all(server)
    with logged("client 2 has been disconnected for") as lost:
        async with Server(store, tmp_path, limits=SOON_LOST):
            await lost.first(1)


async def test_a_client_that_reports_once_more_after_its_stream_broke_is_lost_later(server: Server) -> None:
    daemon = (await join_all(server))[0]
    session = daemon.session
    lost_after = DEFAULT_LIMITS.lost_after.total_seconds()
    with logged("client 0 has been disconnected") as lost:
        await follow_once(server, daemon)
        session.last_seen -= lost_after
        server.coordinator.report_progress(session, pb.Progress())
        server.engine.lost_clients._check(session)  # as its timer does
        assert not lost.lines
        assert session.lost_timer is not None
        session.last_seen -= lost_after
        server.engine.lost_clients._check(session)
    assert len(lost.lines) == 1


async def test_a_client_that_reconnects_again_and_again_has_one_timer(server: Server) -> None:
    daemon = (await join_all(server))[0]
    timers = []
    for _ in range(3):
        await follow_once(server, daemon)
        timers.append(daemon.session.lost_timer)
    events = server.coordinator.follow(daemon.session)
    await next_event(events)
    assert all(timer is not None and timer.cancelled() for timer in timers)
    assert daemon.session.lost_timer is None
    await events.aclose()


# --- reports ---


async def test_a_repeated_report_is_counted_once(server: Server, tmp_path: Path) -> None:
    daemons = await join_all(server)
    for _ in range(3):
        await daemons[0].report(0)
    other = metrics(0, 0)
    other.accuracies[0].correct = 9
    await server.coordinator.report_metrics(daemons[0].session, 0, other)
    (line,) = metrics_of(tmp_path)
    assert line["accuracy"] == 0.0
    assert server.engine.metrics_log.traffic.up == 100


async def test_reports_on_a_future_round_are_refused(server: Server) -> None:
    daemons = await join_all(server)
    assert (await refusal_of(daemons[0].report(1))).reason == pb.REFUSAL_REASON_WRONG_ROUND


async def test_progress_and_failures_are_shown(server: Server) -> None:
    daemons = await join_all(server)
    server.coordinator.report_progress(daemons[1].session, pb.Progress(epochs_done=2, epochs=10))
    failure = pb.Failure(cause="out of memory " + "x" * 10_000)
    await server.coordinator.report_failure(daemons[2].session, 0, failure)
    status = status_of(server.view)
    assert (status.clients[1].progress.epochs_done, status.clients[1].progress.epochs) == (2, 10)
    (incident,) = status.incidents
    assert incident.client_id == 2
    assert incident.message.startswith("failed in round 1/2: out of memory")
    assert len(incident.message) < 600


async def test_only_the_newest_incidents_are_kept(server: Server) -> None:
    for number in range(100):
        server.engine.event_log.incident(None, str(number))
    shown = [incident.message for incident in status_of(server.view).incidents]
    assert shown == [str(number) for number in range(80, 100)]
