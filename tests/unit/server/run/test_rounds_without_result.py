"""Rounds of a secure sum without a result leave the state as it was; too many in a row end the run."""

from __future__ import annotations

from datetime import timedelta

from run_machine import Run, ids

from feddbp_server.run.snapshot import RunSnapshot
from feddbp_server.run.state_machine.events import Aggregated, CloseRound, Connected, Joined, Skipped, Tick, Uploaded
from feddbp_server.run.state_machine.state import Phase

CLIENTS = 3


def summing(**changed: int) -> Run:
    return Run.collecting(CLIENTS, rounds=100, min_clients=CLIENTS, closes_without_result=True, **changed)


def close_without_result(run: Run) -> None:
    """All clients skip the open round."""
    number = run.state.round
    effects = run(*(Skipped(client, number) for client in range(CLIENTS)))
    assert effects[-1] == CloseRound(number, ids())
    run(Aggregated(number, without_result=True))


def test_a_round_that_nobody_can_complete_is_closed_and_the_next_one_opens() -> None:
    run = summing()
    close_without_result(run)
    assert (run.phase, run.state.round, run.state.rounds_without_result) == (Phase.COLLECTING, 1, 1)


def test_a_round_without_enough_uploads_at_its_deadline_is_closed_instead_of_extended() -> None:
    run = summing()
    run(Uploaded(0, 0))
    run.now = 11.0
    effects = run(Tick())
    assert [type(effect) for effect in effects][-1] is CloseRound
    assert run.phase is Phase.AGGREGATING


def test_a_run_of_which_rounds_in_a_row_come_to_nothing_fails() -> None:
    run = summing(max_extensions=2)
    for _ in range(2):
        close_without_result(run)
    run(*(Skipped(client, 2) for client in range(CLIENTS)))
    assert run.phase is Phase.FAILED
    assert run.state.reason == (
        "round 3 needs 3 uploads and has 0 after 2 rounds that gave nothing; not able to train: clients 0-2"
    )


def test_a_round_that_gives_something_starts_the_count_again() -> None:
    run = summing(max_extensions=1)
    close_without_result(run)
    run(*(Uploaded(client, 1) for client in range(CLIENTS)), Aggregated(1))
    assert run.state.rounds_without_result == 0
    close_without_result(run)
    assert run.phase is Phase.COLLECTING


def test_a_run_without_any_sum_has_failed() -> None:
    run = Run.collecting(CLIENTS, rounds=2, min_clients=CLIENTS, closes_without_result=True)
    close_without_result(run)
    close_without_result(run)
    assert (run.phase, run.state.reason) == (Phase.FAILED, "none of 2 rounds gave a sum of clients")


def test_no_round_opens_without_enough_members_for_a_sum() -> None:
    run = Run(min_clients=2, clients=6, least_members=5, join_window=timedelta(0))
    phases = [run(Joined(client)) and run.phase for client in range(5)]
    assert phases[-1] is Phase.COLLECTING
    assert Phase.COLLECTING not in phases[:-1]


def test_of_few_members_enough_for_a_sum_are_selected() -> None:
    run = Run(min_clients=2, clients=20, participation=0.5, least_members=7, join_window=timedelta(0))
    run(*(Joined(client) for client in range(7)))
    assert run.state.selected == frozenset(range(7))
    run(*(Joined(client) for client in range(7, 12)), *(Uploaded(client, 0) for client in range(7)), Aggregated(0))
    assert (run.state.round, len(run.state.members), len(run.state.selected)) == (1, 12, 7)


def test_a_failed_run_names_those_that_are_gone_and_not_those_that_wait_for_them() -> None:
    run = summing(max_extensions=0)
    run(Connected(0), Connected(1))
    run.now = 11.0
    run(Tick())
    assert run.state.reason.endswith("missing: client 2")


def test_a_restarted_server_counts_on() -> None:
    run = summing()
    close_without_result(run)
    restored = RunSnapshot.from_json(RunSnapshot(state=run.state, seconds=0.0).to_json())
    assert restored.state.rounds_without_result == 1
