"""Clients that do not deliver: those that skip a round, those that are silent, and those that wait outside."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from coordinator_runs import CLIENTS, PATIENCE, Daemon, Server, join_all
from run_machine import ids, policy
from slow_disk import SlowDisk

from feddbp.v1 import federation_pb2 as pb
from feddbp_server.rpc.status_reply import status_of
from feddbp_server.run.snapshot import RunSnapshot
from feddbp_server.run.state_machine.events import (
    Aggregated,
    ClientsSetAside,
    CloseRound,
    Connected,
    DeadlineExtended,
    Effect,
    Event,
    Joined,
    Reported,
    Skipped,
    Tick,
    Uploaded,
)
from feddbp_server.run.state_machine.state import Phase, RoundPolicy, RunState
from feddbp_server.run.state_machine.transitions import step
from feddbp_server.store import MemoryStore


class Machine:
    """A run whose deadlines pass on request."""

    def __init__(self, rules: RoundPolicy, *clients: int) -> None:
        self.policy, self.now = rules, 0.0
        self.state = RunState(members=ids(*clients), connected=ids(*clients))
        self.effects: tuple[Effect, ...] = ()
        self.apply(Tick())

    def apply(self, *events: Event) -> None:
        for event in events:
            self.state, self.effects = step(self.state, event, self.policy, self.now)

    def enter(self, client: int) -> None:
        self.apply(Joined(client), Connected(client))

    def pass_deadline(self) -> None:
        self.now += 11.0
        self.apply(Tick())

    def upload(self, *clients: int) -> None:
        self.apply(*(Uploaded(client, self.state.round) for client in clients))

    def restart(self) -> None:
        stored = RunSnapshot.from_json(RunSnapshot(state=self.state, seconds=0.0).to_json()).state
        assert stored.durable == self.state.durable
        assert stored.missed == self.state.missed


def test_a_round_does_not_wait_for_a_client_that_skips_it() -> None:
    run = Machine(policy(min_clients=2), 0, 1, 2)
    run.apply(Skipped(2, 0))
    assert run.state.missing == ids(0, 1)
    run.upload(0, 1)
    assert run.effects == (CloseRound(0, ids()),)
    run.apply(Aggregated(0))
    assert run.state.selected == ids(0, 1, 2)  # it stays
    assert run.state.skipped == ids()
    assert not run.state.missed


def test_a_client_that_skipped_may_still_upload() -> None:
    run = Machine(policy(min_clients=2), 0, 1)
    run.apply(Skipped(1, 0))
    run.upload(1, 0)
    assert run.state.uploaded == ids(0, 1)
    assert run.state.phase is Phase.AGGREGATING


def test_a_skip_of_another_round_or_by_a_stranger_changes_nothing() -> None:
    run = Machine(policy(min_clients=2), 0, 1)
    before = run.state
    run.apply(Skipped(0, 1), Skipped(7, 0))
    assert run.state == before


def test_a_round_that_nobody_can_complete_fails_at_once_and_says_why() -> None:
    run = Machine(policy(min_clients=2), 0, 1)
    run.upload(0)
    run.apply(Skipped(1, 0))
    assert run.state.phase is Phase.FAILED
    assert run.state.reason == ("round 1 needs 2 uploads and has 1 after 0 extensions; not able to train: client 1")


def test_the_last_evaluation_does_not_wait_for_a_client_that_skips_it() -> None:
    run = Machine(policy(rounds=1, min_clients=2), 0, 1)
    run.upload(0, 1)
    run.apply(Aggregated(0), Reported(0, 1), Skipped(1, 1))
    assert run.state.phase is Phase.FINISHED


def test_members_that_wait_outside_enter_when_a_round_is_extended() -> None:
    """A silent client would fail the run, while an honest one is there and may not take part."""
    run = Machine(policy(min_clients=2, max_extensions=1), 0, 1)
    run.enter(2)
    run.upload(0)
    assert run.state.selected == ids(0, 1)
    run.pass_deadline()
    assert run.effects == (DeadlineExtended(0, 1, ids(1)),)
    assert run.state.selected == ids(0, 1, 2)
    run.upload(2)
    run.pass_deadline()
    assert run.state.phase is Phase.AGGREGATING


def test_members_that_wait_outside_enter_a_round_that_others_skip() -> None:
    run = Machine(policy(min_clients=2), 0, 1)
    run.enter(2)
    run.upload(0)
    run.apply(Skipped(1, 0))
    assert run.state.missing == ids(2)
    run.upload(2)
    assert run.state.phase is Phase.AGGREGATING


def test_only_connected_members_enter_an_extended_round() -> None:
    run = Machine(policy(min_clients=2), 0, 1)
    run.apply(Joined(2))
    run.pass_deadline()
    assert run.state.selected == ids(0, 1)


def miss(run: Machine, silent: int, *, others: tuple[int, ...] = (0, 1)) -> None:
    """Closes a round without a client, at the deadline if the round waits for it."""
    run.upload(*others)
    if silent in run.state.missing:
        run.pass_deadline()
    assert run.state.phase is Phase.AGGREGATING
    run.apply(Aggregated(run.state.round))


def test_a_client_that_misses_rounds_in_a_row_is_set_aside_and_costs_no_deadline_any_more() -> None:
    run = Machine(policy(rounds=30, min_clients=2, max_missed=3), 0, 1, 2)
    for _ in range(2):
        miss(run, 2)
    assert run.state.missing == ids(0, 1, 2)
    miss(run, 2)
    assert ClientsSetAside(ids(2)) in run.effects
    assert run.state.selected == ids(0, 1, 2)  # it may upload
    assert run.state.missing == ids(0, 1)
    run.restart()
    waited = []
    for _ in range(12):
        waited.append(2 in run.state.missing)
        miss(run, 2)
        assert ClientsSetAside(ids(2)) not in run.effects  # said once
    assert waited.count(True) == 1  # it may have recovered, and be the slowest


def test_no_number_of_missed_rounds_puts_off_that_a_client_is_set_aside() -> None:
    run = Machine(policy(rounds=30, min_clients=2, max_missed=10), 0, 1, 2)
    for _ in range(10):
        assert run.state.missing == ids(0, 1, 2)
        miss(run, 2)
    assert ClientsSetAside(ids(2)) in run.effects
    assert run.state.missing == ids(0, 1)


def test_a_client_that_uploads_is_waited_for_again() -> None:
    run = Machine(policy(rounds=30, min_clients=2, max_missed=1), 0, 1, 2)
    miss(run, 2)
    assert 2 not in run.state.missing
    run.upload(2, 0, 1)
    run.apply(Aggregated(run.state.round))
    assert run.state.missing == ids(0, 1, 2)
    assert not run.state.missed


def test_leaving_out_and_joining_again_does_not_count_as_delivering() -> None:
    run = Machine(policy(rounds=30, min_clients=2, max_missed=2), 0, 1, 2)
    for _ in range(2):
        run.apply(Joined(2))  # and is not connected at the deadline
        miss(run, 2)
        run.enter(2)
        miss(run, 2)  # it waits outside
    assert run.state.missed == {2: 2}
    assert run.state.set_aside == ids(2)


def test_without_a_limit_every_round_waits() -> None:
    run = Machine(policy(rounds=30, min_clients=2, max_missed=0), 0, 1, 2)
    for _ in range(6):
        miss(run, 2)
    assert run.state.missing == ids(0, 1, 2)


def test_fewer_uploads_than_min_clients_close_no_round_though_the_rest_is_set_aside() -> None:
    run = Machine(policy(rounds=30, min_clients=2, max_missed=1, max_extensions=0), 0, 1, 2)
    miss(run, 2)
    run.apply(Skipped(1, 1))
    run.upload(0)
    assert not run.state.phase.is_final  # client 2 may upload until the deadline
    run.pass_deadline()
    assert run.state.phase is Phase.FAILED
    assert "missing: client 2; not able to train: client 1" in run.state.reason


def test_the_last_evaluation_waits_for_everyone() -> None:
    run = Machine(policy(rounds=2, min_clients=2, max_missed=1), 0, 1, 2)
    miss(run, 2)
    miss(run, 2)
    assert run.state.phase is Phase.EVALUATING
    assert run.state.missing == ids(0, 1, 2)


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_skip_is_durable_and_named(tmp_path: Path, restarted: bool) -> None:
    store = MemoryStore()
    server = Server(store, tmp_path, min_clients=2)
    await server.engine.start()
    await server.coordinator.pause()  # two clients would be enough for the first round
    daemons = await join_all(server)
    await server.coordinator.resume()
    failure = pb.Failure(cause="training diverged", skips_round=True)
    for _ in range(2):  # a client repeats what it is not sure to have delivered
        await server.coordinator.report_failure(daemons[2].session, 0, failure)
    (incident,) = status_of(server.view).incidents
    assert (incident.client_id, incident.message) == (2, "skips round 1/2: training diverged")
    await daemons[0].upload(0)
    if restarted:
        await server.engine.drain()
        server = Server(store, tmp_path, min_clients=2)
        await server.engine.start()
        daemons = [daemon.moved_to(server) for daemon in daemons]
    await daemons[1].upload(0)
    await server.until_round(1)
    assert server.engine.state.selected == ids(0, 1, 2)
    await server.engine.drain()
    await server.crash()


async def test_a_client_that_joins_again_while_the_deadline_drops_it_is_a_member_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk()
    rules: dict[str, Any] = {"min_clients": 2, "clients": CLIENTS, "join_window": timedelta(days=1), "deadline": 3600}
    server = Server(disk, tmp_path, **rules)
    await server.engine.start()
    daemons = await join_all(server)
    for daemon in daemons[:2]:
        await daemon.work(0)
    # the round is never closed: that would store all members
    monkeypatch.setattr(server.engine.closer, "aggregate", lambda _: asyncio.get_running_loop().create_future())
    disk.slow_at = "member"
    joining = asyncio.create_task(Daemon.join(server, 2, previous=daemons[2].secret))
    assert await asyncio.to_thread(disk.reached.wait, PATIENCE)
    server.engine.state = replace(server.engine.state, deadline=0.0)
    dropping = asyncio.create_task(server.engine.apply(Tick()))
    async with asyncio.timeout(PATIENCE):
        while server.thread._jobs.empty():  # noqa: ASYNC110 - nothing tells that its job waits behind that of the join
            await asyncio.sleep(0)
    disk.released.set()
    await asyncio.gather(dropping, joining)
    assert server.engine.state.members == ids(0, 1, 2)
    await server.crash()
    async with Server(disk, tmp_path, **rules) as restarted:
        assert restarted.engine.state.members == ids(0, 1, 2)
