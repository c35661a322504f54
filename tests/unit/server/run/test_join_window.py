"""The join window: when a run begins, and for whom it waits."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from run_machine import Run, ids

from feddbp_server.run.snapshot import RunSnapshot
from feddbp_server.run.state_machine.events import (
    Aggregated,
    Allowed,
    Blocked,
    Connected,
    Disconnected,
    Joined,
    Left,
    PauseRequested,
    ResumeRequested,
    RoundOpened,
    RunBegan,
    Uploaded,
)
from feddbp_server.run.state_machine.state import Phase


def windowed(seconds: float | None = 30, **changed: Any) -> Run:
    window = None if seconds is None else timedelta(seconds=seconds)
    return Run(**{"clients": 4, "min_clients": 1, "rounds": 5, "join_window": window, **changed})


def test_a_run_begins_at_once_when_all_have_joined() -> None:
    run = windowed()
    assert run(Joined(0), Joined(1), Joined(2)) == ()
    assert run(Joined(3)) == (RoundOpened(0, ids(0, 1, 2, 3)),)


def test_a_run_begins_without_the_missing_when_the_window_is_over() -> None:
    run = windowed()
    run(Joined(0), Joined(2))
    assert run.state.deadline == 30
    assert run.after(29) == ()
    assert run.after(1) == (RunBegan(ids(0, 2), ids(1, 3)), RoundOpened(0, ids(0, 2)))
    assert run.state.began_with == 2


def test_every_join_begins_the_window_anew() -> None:
    run = windowed()
    run(Joined(0))
    run.after(20)
    run(Joined(1))
    assert run.after(29) == ()
    assert run.after(1) == (RunBegan(ids(0, 1), ids(2, 3)), RoundOpened(0, ids(0, 1)))


def test_a_client_that_comes_and_goes_does_not_hold_the_run_up() -> None:
    run = windowed()
    run(Joined(0), Joined(1))
    run.after(20)
    run(Left(1), Joined(1), Connected(1), Disconnected(1), Joined(1))
    assert run.after(10)[-1] == RoundOpened(0, ids(0, 1))


def test_the_window_does_not_replace_the_quorum() -> None:
    run = windowed(min_clients=3)
    run(Joined(0), Joined(1))
    assert run.state.deadline is None
    assert run.after(1000) == ()
    run(Joined(2))
    assert run.after(30)[-1] == RoundOpened(0, ids(0, 1, 2))


def test_a_window_without_end_waits_for_all() -> None:
    run = windowed(None)
    run(Joined(0), Joined(1), Joined(2))
    assert run.state.deadline is None
    assert run.after(10**9) == ()
    assert run(Joined(3)) == (RoundOpened(0, ids(0, 1, 2, 3)),)


def test_without_a_window_a_run_begins_with_its_quorum() -> None:
    run = windowed(0, min_clients=2)
    run(Joined(1))
    assert run(Joined(3)) == (RunBegan(ids(1, 3), ids(0, 2)), RoundOpened(0, ids(1, 3)))


def test_a_run_that_has_begun_waits_only_for_those_that_took_part() -> None:
    run = windowed(min_clients=2)
    run(Joined(0), Joined(1))
    run.after(30)
    run(Left(1), Uploaded(0, 0), Aggregated(0))
    assert run.phase is Phase.WAITING
    assert run.policy.awaited(run.state) == ids(1)
    assert run(Joined(1)) == (RoundOpened(1, ids(0, 1)),)


def test_clients_that_all_left_have_the_window_to_come_back_together() -> None:
    run = windowed(min_clients=1)
    run(Joined(0), Joined(1), Joined(2), Joined(3))
    run(*(Left(client) for client in range(4)))
    assert run.phase is Phase.WAITING
    run.after(100)
    assert run(Joined(2)) == ()
    run.after(5)
    run(Joined(0), Joined(1))
    assert run(Joined(3)) == (RoundOpened(0, ids(0, 1, 2, 3)),)


def test_a_paused_run_keeps_its_window_for_the_resumption() -> None:
    run = windowed()
    run(Joined(0), PauseRequested())
    assert run.after(100) == ()
    assert run(ResumeRequested())[-1] == RoundOpened(0, ids(0))


def test_newcomers_are_not_awaited_before_their_rounds() -> None:
    run = windowed(newcomers=ids(3), newcomer_rounds=1)
    assert run(Joined(0), Joined(1), Joined(2)) == (RoundOpened(0, ids(0, 1, 2)),)


def test_a_blocked_client_is_neither_awaited_nor_a_member() -> None:
    run = windowed()
    run(Joined(0), Joined(1), Joined(3))
    assert run(Blocked(3)) == ()
    assert run(Joined(2), Left(2), Joined(2)) == (RoundOpened(0, ids(0, 1, 2)),)
    assert run.state.blocked == ids(3)
    run(Allowed(3))
    assert run.state.blocked == ids()


def test_a_round_does_not_wait_for_a_blocked_client() -> None:
    run = windowed()
    run(*(Joined(client) for client in range(4)))
    run(*(Uploaded(client, 0) for client in range(3)))
    run(Blocked(3))
    assert run.phase is Phase.AGGREGATING
    assert run.state.members == ids(0, 1, 2)


def test_the_snapshot_has_what_a_restart_needs() -> None:
    run = windowed()
    run(Joined(0), Joined(1))
    run.after(30)
    run(Blocked(1))
    restored = RunSnapshot.from_json(RunSnapshot(state=run.state, seconds=3.0).to_json()).state
    assert (restored.began_with, restored.blocked, restored.members) == (2, ids(1), ids(0))


def test_a_snapshot_of_an_earlier_version_tells_whether_the_run_had_begun() -> None:
    text = (
        '{"phase": "%s", "held_phase": %s, "round": %d, "members": [0, 2], "selected": [], "observers": [],'
        ' "extensions": 0, "reason": "", "seconds": 1.0}'
    )
    assert RunSnapshot.from_json(text % ("waiting", "null", 0)).state.began_with == 0
    assert RunSnapshot.from_json(text % ("paused", '"waiting"', 0)).state.began_with == 0
    assert RunSnapshot.from_json(text % ("collecting", "null", 0)).state.began_with == 2
    assert RunSnapshot.from_json(text % ("waiting", "null", 1)).state.began_with == 2
