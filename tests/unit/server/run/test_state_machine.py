"""The state machine, one transition at a time."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_machine import Run, ids, policy

from feddbp_server.run.state_machine.events import (
    Aggregated,
    CloseRound,
    Connected,
    DeadlineExtended,
    Disconnected,
    Event,
    FinalEvaluationOpened,
    Joined,
    Left,
    MembersDropped,
    PauseRequested,
    Reported,
    ResumeRequested,
    RoundAbandoned,
    RoundOpened,
    RunEnded,
    RunFailed,
    StopRequested,
    Tick,
    Uploaded,
)
from feddbp_server.run.state_machine.state import Phase, RunState
from feddbp_server.run.state_machine.transitions import select, step

# --- WAITING -> COLLECTING ---


def test_a_run_waits_until_enough_clients_have_joined() -> None:
    run = Run(min_clients=3)
    assert run(Joined(0), Joined(1)) == ()
    assert run.phase is Phase.WAITING
    assert run(Joined(2)) == (RoundOpened(0, ids(0, 1, 2)),)
    assert (run.phase, run.state.round, run.state.selected) == (Phase.COLLECTING, 0, ids(0, 1, 2))


def test_the_same_client_joining_again_does_not_make_a_quorum() -> None:
    run = Run(min_clients=2)
    run(Joined(0), Joined(0), Connected(0), Disconnected(0), Joined(0))
    assert run.phase is Phase.WAITING


def test_a_client_that_left_does_not_count_towards_the_quorum() -> None:
    run = Run(min_clients=2)
    run(Joined(0), Left(0), Joined(1))
    assert run.phase is Phase.WAITING


def test_a_member_need_not_be_connected() -> None:
    run = Run(min_clients=1)
    run(Joined(4))
    assert run.state.selected == ids(4)
    assert run.state.connected == ids()


def test_a_waiting_run_has_no_deadline() -> None:
    run = Run(min_clients=2)
    run(Joined(0))
    assert run.state.deadline is None
    assert run.after(10**9) == ()


# --- COLLECTING -> AGGREGATING ---


def test_a_round_closes_when_every_selected_client_has_uploaded() -> None:
    run = Run.collecting(3)
    assert run(Uploaded(0, 0), Uploaded(2, 0)) == ()
    assert run.state.missing == ids(1)
    assert run(Uploaded(1, 0)) == (CloseRound(0, ids()),)
    assert run.phase is Phase.AGGREGATING
    assert run.state.deadline is None


def test_a_repeated_upload_counts_once() -> None:
    run = Run.collecting(2)
    run(Uploaded(0, 0))
    before = run.state
    assert run(Uploaded(0, 0)) == ()
    assert run.state == before


@pytest.mark.parametrize("late", [Uploaded(0, 1), Uploaded(7, 0), Reported(0, 5), Aggregated(0), ResumeRequested()])
def test_an_event_that_is_out_of_date_changes_nothing(late: Event) -> None:
    run = Run.collecting(2)
    before = run.state
    assert run(late) == ()
    assert run.state == before


def test_reports_do_not_close_a_round_that_waits_for_uploads() -> None:
    run = Run.collecting(2)
    assert run(Reported(0, 0), Reported(1, 0)) == ()
    assert run.phase is Phase.COLLECTING


def test_a_round_waits_for_the_reports_of_observers() -> None:
    run = Run.collecting(4, participation=0.5, min_clients=2)
    observers = run.state.observers
    assert len(run.state.selected) == len(observers) == 2
    assert run(*(Uploaded(client, 0) for client in run.state.selected)) == ()
    assert run.state.missing == observers
    first, second = sorted(observers)
    assert run(Reported(first, 0)) == ()
    assert run(Reported(second, 0)) == (CloseRound(0, ids()),)


# --- the deadline ---


def test_a_tick_before_the_deadline_changes_nothing() -> None:
    run = Run.collecting(3, deadline=10)
    run(Uploaded(0, 0))
    assert run.after(9.999) == ()
    assert run.phase is Phase.COLLECTING


def test_at_the_deadline_a_round_with_a_quorum_closes_without_the_rest() -> None:
    run = Run.collecting(3, min_clients=2, deadline=10)
    run(Connected(2), Uploaded(0, 0), Uploaded(1, 0))
    assert run.after(10) == (CloseRound(0, ids(2)),)
    assert run.phase is Phase.AGGREGATING
    assert run.state.members == ids(0, 1, 2)


def test_a_client_that_is_disconnected_at_the_deadline_is_dropped() -> None:
    run = Run.collecting(4, min_clients=1, deadline=10)
    run(Connected(1), Connected(2), Disconnected(2), Uploaded(0, 0))
    assert run.after(10) == (MembersDropped(ids(2, 3)), CloseRound(0, ids(1)))
    assert run.state.members == ids(0, 1)


def test_a_client_that_uploaded_and_disconnected_is_not_dropped() -> None:
    run = Run.collecting(2, min_clients=1, deadline=10)
    run(Connected(0), Uploaded(0, 0), Disconnected(0), Connected(1))
    assert run.after(10) == (CloseRound(0, ids(1)),)
    assert 0 in run.state.members


def test_an_observer_that_is_away_at_the_deadline_is_dropped_too() -> None:
    run = Run.collecting(2, participation=0.5, min_clients=1, deadline=10)
    (observer,) = run.state.observers
    (selected,) = run.state.selected
    run(Uploaded(selected, 0))
    assert run.after(10) == (MembersDropped(ids(observer)), CloseRound(0, ids()))


def test_a_dropped_client_may_join_again_and_takes_part_in_the_next_round() -> None:
    run = Run.collecting(2, min_clients=1, deadline=10, rounds=3)
    run(Uploaded(0, 0))
    run.after(10)
    run(Joined(1))
    assert run.state.members == ids(0, 1)
    assert run(Aggregated(0)) == (RoundOpened(1, ids(0, 1)),)


def test_a_crashed_client_that_reconnects_before_the_deadline_stays_a_member() -> None:
    run = Run.collecting(2, min_clients=2, deadline=10)
    run(Connected(0), Connected(1), Disconnected(1), Uploaded(0, 0))
    assert run.state.missing == ids(1)
    run.after(9)
    assert run(Joined(1), Connected(1), Uploaded(1, 0)) == (CloseRound(0, ids()),)


def test_without_a_quorum_the_deadline_is_extended_and_the_missing_are_named() -> None:
    run = Run.collecting(3, min_clients=2, deadline=10, max_extensions=2)
    run(Uploaded(1, 0))
    assert run.after(10) == (DeadlineExtended(0, 1, ids(0, 2)),)
    assert run.state.deadline == 20
    assert run.after(9) == ()
    assert run.after(2) == (DeadlineExtended(0, 2, ids(0, 2)),)
    assert run.state.deadline == 31
    assert run.phase is Phase.COLLECTING


def test_an_extension_drops_no_client() -> None:
    run = Run.collecting(3, min_clients=2, deadline=10)
    run.after(10)
    assert run.state.members == ids(0, 1, 2)


def test_an_upload_after_an_extension_can_still_make_the_quorum() -> None:
    run = Run.collecting(3, min_clients=2, deadline=10)
    run(Connected(2), Uploaded(0, 0))
    run.after(10)
    assert run(Uploaded(1, 0)) == ()
    assert run.after(10) == (CloseRound(0, ids(2)),)


def test_a_run_that_is_over_has_no_missing_clients() -> None:
    run = Run.collecting(3)
    assert run.state.missing == ids(0, 1, 2)
    run(StopRequested("enough"))
    assert run.state.missing == ids()


def test_after_the_last_extension_the_run_fails_and_names_the_missing() -> None:
    run = Run.collecting(3, min_clients=2, deadline=10, max_extensions=1)
    run(Uploaded(1, 0))
    run.after(10)
    (ended,) = run.after(10)
    assert isinstance(ended, RunEnded)
    assert ended.phase is run.phase is Phase.FAILED
    assert ended.reason == run.state.reason
    assert "round 1 needs 2 uploads and has 1 after 1 extension; missing: " in ended.reason
    assert ended.reason.endswith("missing: clients 0, 2")
    assert "client 1" not in ended.reason


def test_without_extensions_the_first_deadline_without_a_quorum_fails_the_run() -> None:
    run = Run.collecting(2, min_clients=2, deadline=10, max_extensions=0)
    run.after(10)
    assert run.phase is Phase.FAILED


def test_even_a_quorum_of_one_needs_one_upload() -> None:
    run = Run.collecting(2, min_clients=1, deadline=10)
    assert run.after(10) == (DeadlineExtended(0, 1, ids(0, 1)),)


def test_extensions_are_counted_per_round() -> None:
    run = Run.collecting(2, min_clients=2, deadline=10, max_extensions=1, rounds=3)
    run.after(10)
    assert run.state.extensions == 1
    run(Uploaded(0, 0), Uploaded(1, 0), Aggregated(0))
    assert run.state.extensions == 0
    assert run.after(10) == (DeadlineExtended(1, 1, ids(0, 1)),)


def test_every_round_has_its_own_deadline() -> None:
    run = Run.collecting(1, min_clients=1, deadline=10, rounds=3)
    assert run.state.deadline == 10
    run.after(4)
    run(Uploaded(0, 0), Aggregated(0))
    assert run.state.deadline == 14


def test_without_a_deadline_a_round_waits_without_limit() -> None:
    run = Run.collecting(2, min_clients=1, deadline=None)
    run(Uploaded(0, 0))
    assert run.state.deadline is None
    assert run.after(10**9) == ()
    assert run.phase is Phase.COLLECTING


# --- AGGREGATING -> the next round, or the end ---


def test_after_aggregation_the_next_round_opens() -> None:
    run = Run.collecting(2, rounds=3)
    run(Uploaded(0, 0), Uploaded(1, 0))
    assert run(Aggregated(0)) == (RoundOpened(1, ids(0, 1)),)
    assert (run.phase, run.state.round) == (Phase.COLLECTING, 1)
    assert run.state.uploaded == run.state.reported == ids()


def test_the_aggregate_of_another_round_changes_nothing() -> None:
    run = Run.collecting(1, rounds=3)
    run(Uploaded(0, 0))
    before = run.state
    assert run(Aggregated(1)) == ()
    assert run.state == before


def test_after_the_last_round_every_member_evaluates() -> None:
    run = Run.collecting(2, rounds=1)
    run(Uploaded(0, 0), Uploaded(1, 0))
    assert run(Aggregated(0)) == (FinalEvaluationOpened(1),)
    assert (run.phase, run.state.round, run.state.missing) == (Phase.EVALUATING, 1, ids(0, 1))


def test_after_aggregation_a_run_waits_with_too_few_members() -> None:
    run = Run.collecting(2, min_clients=2, rounds=3)
    run(Uploaded(0, 0), Uploaded(1, 0), Left(1))
    assert run(Aggregated(0)) == ()
    assert (run.phase, run.state.round, run.state.missing) == (Phase.WAITING, 1, ids())
    assert run.state.uploaded <= run.state.selected
    assert run(Joined(1)) == (RoundOpened(1, ids(0, 1)),)


def test_a_client_that_joins_during_a_round_waits_for_the_next() -> None:
    run = Run.collecting(2, rounds=3)
    assert run(Joined(9), Connected(9)) == ()
    assert 9 not in run.state.selected | run.state.observers
    run(Uploaded(9, 0))
    assert 9 not in run.state.uploaded
    assert run(Uploaded(0, 0), Uploaded(1, 0)) == (CloseRound(0, ids()),)
    assert run(Aggregated(0)) == (RoundOpened(1, ids(0, 1, 9)),)


def test_a_client_that_joins_while_a_round_is_being_closed_takes_part_in_the_next() -> None:
    run = Run.collecting(1, rounds=3)
    run(Uploaded(0, 0), Joined(3))
    assert run(Aggregated(0)) == (RoundOpened(1, ids(0, 3)),)


# --- EVALUATING -> FINISHED ---


def test_the_run_is_finished_once_every_member_has_reported() -> None:
    run = Run.evaluating(2)
    assert run(Reported(1, 1)) == ()
    (ended,) = run(Reported(0, 1))
    assert ended == RunEnded(Phase.FINISHED, "all rounds are done")
    assert (run.phase, run.state.round) == (Phase.FINISHED, 1)


def test_reports_on_an_earlier_round_do_not_finish_the_run() -> None:
    run = Run.evaluating(1)
    assert run(Reported(0, 0)) == ()
    assert run.phase is Phase.EVALUATING


def test_at_the_deadline_of_the_final_evaluation_the_run_is_finished_without_the_missing() -> None:
    run = Run.evaluating(3, deadline=10)
    run(Reported(1, 1))
    (ended,) = run.after(10)
    assert ended == RunEnded(Phase.FINISHED, "no final results from clients 0, 2")


def test_a_reason_that_names_thousands_of_clients_fits_the_message_of_a_status() -> None:
    run = Run.evaluating(5_000, deadline=10)
    run(*(Reported(client, 1) for client in range(0, 5_000, 2)))
    run.after(10)
    assert run.state.reason.startswith("no final results from clients 1, 3, 5, ")
    assert run.state.reason.endswith(" and others, 2500 in all")
    assert len(run.state.reason) < 300


def test_a_run_whose_members_all_left_before_the_end_is_finished() -> None:
    run = Run.collecting(1, rounds=1)
    run(Uploaded(0, 0), Left(0))
    effects = run(Aggregated(0))
    assert effects == (FinalEvaluationOpened(1), RunEnded(Phase.FINISHED, "all rounds are done"))


def test_the_final_evaluation_does_not_wait_for_clients_that_leave() -> None:
    run = Run.evaluating(2)
    run(Reported(0, 1))
    (ended,) = run(Left(1))
    assert isinstance(ended, RunEnded)
    assert run.phase is Phase.FINISHED


# --- leaving ---


def test_a_round_does_not_wait_for_clients_that_leave() -> None:
    run = Run.collecting(3)
    run(Uploaded(0, 0), Uploaded(1, 0))
    assert run(Left(2)) == (CloseRound(0, ids()),)
    assert run.state.members == ids(0, 1)


def test_an_upload_of_a_client_that_left_still_counts() -> None:
    run = Run.collecting(2)
    run(Uploaded(0, 0), Left(0))
    assert run.state.uploaded == ids(0)
    assert run.state.selected == ids(0, 1)
    assert 0 not in run.state.members
    assert run(Uploaded(1, 0)) == (CloseRound(0, ids()),)


def test_a_round_whose_clients_all_left_before_uploading_is_not_closed() -> None:
    run = Run.collecting(2, min_clients=2)
    assert run(Left(0), Left(1)) == (RoundAbandoned(0),)
    assert (run.phase, run.state.round, run.state.deadline) == (Phase.WAITING, 0, None)
    assert run(Joined(0), Joined(1)) == (RoundOpened(0, ids(0, 1)),)


def test_a_round_whose_clients_all_left_opens_at_once_for_those_that_joined_since() -> None:
    run = Run.collecting(1, min_clients=1)
    run(Joined(5), Connected(5))
    assert run(Left(0)) == (RoundAbandoned(0), RoundOpened(0, ids(5)))
    assert run.phase is Phase.COLLECTING


def test_an_observer_alone_does_not_keep_a_round_open() -> None:
    run = Run.collecting(3, participation=0.6, min_clients=2, deadline=10, max_extensions=0)
    (observer,) = run.state.observers
    run(Connected(observer))
    assert run(*map(Left, sorted(run.state.selected))) == (RoundAbandoned(0),)
    assert (run.phase, run.state.missing, run.state.deadline) == (Phase.WAITING, ids(), None)
    assert run.after(1000) == ()  # as before the first round: no deadline without clients
    assert run(Joined(7)) == (RoundOpened(0, ids(observer, 7)),)


def test_an_observer_that_makes_the_quorum_is_selected_when_the_others_left() -> None:
    run = Run.collecting(2, participation=0.5, min_clients=1, deadline=10, max_extensions=0)
    (observer,), (trainer,) = run.state.observers, run.state.selected
    assert run(Left(trainer)) == (RoundAbandoned(0), RoundOpened(0, ids(observer)))
    (ended,) = run.after(10)
    assert isinstance(ended, RunEnded)
    assert ended.reason == f"round 1 needs 1 upload and has 0 after 0 extensions; missing: client {observer}"


def test_a_round_that_opens_again_keeps_its_reports() -> None:
    run = Run.collecting(2, participation=0.5, min_clients=1, rounds=3)
    (observer,), (trainer,) = run.state.observers, run.state.selected
    run(Reported(observer, 0), Joined(5), Left(trainer))
    assert (run.phase, run.state.round, run.state.reported) == (Phase.COLLECTING, 0, ids(observer))
    run(*(Uploaded(client, 0) for client in run.state.selected))
    assert observer not in run.state.missing


def test_a_client_that_left_and_joined_again_in_a_round_waits_for_the_next() -> None:
    run = Run.collecting(2, rounds=3)
    run(Left(0), Joined(0))
    assert run.state.missing == ids(1)
    run(Uploaded(1, 0))
    assert run(Aggregated(0)) == (RoundOpened(1, ids(0, 1)),)


# --- PAUSED ---


def in_phase(phase: Phase) -> Run:
    match phase:
        case Phase.WAITING:
            run = Run(min_clients=2)
            run(Joined(0))
        case Phase.COLLECTING:
            run = Run.collecting(2)
        case Phase.AGGREGATING:
            run = Run.collecting(2)
            run(Uploaded(0, 0), Uploaded(1, 0))
        case _:
            run = Run.evaluating(2)
    assert run.phase is phase
    return run


ACTIVE = [Phase.WAITING, Phase.COLLECTING, Phase.AGGREGATING, Phase.EVALUATING]


@pytest.mark.parametrize("phase", ACTIVE)
def test_a_pause_interrupts_every_phase_and_resume_restores_it(phase: Phase) -> None:
    run = in_phase(phase)
    before = run.state
    assert run(PauseRequested()) == ()
    assert (run.phase, run.state.held_phase, run.state.deadline) == (Phase.PAUSED, phase, None)
    assert run(ResumeRequested()) == ()
    assert run.state == before


@pytest.mark.parametrize("phase", ACTIVE)
def test_pausing_twice_is_pausing_once(phase: Phase) -> None:
    run = in_phase(phase)
    run(PauseRequested())
    before = run.state
    assert run(PauseRequested()) == ()
    assert run.state == before


@pytest.mark.parametrize("phase", ACTIVE)
def test_a_pause_stops_the_clock(phase: Phase) -> None:
    run = in_phase(phase)
    run(PauseRequested())
    before = run.state
    assert run.after(10**9) == ()
    assert run.state == before


@pytest.mark.parametrize("phase", [Phase.COLLECTING, Phase.EVALUATING])
def test_the_deadline_restarts_after_a_pause(phase: Phase) -> None:
    run = in_phase(phase)
    run.after(3)
    run(PauseRequested())
    run.after(100)
    run(ResumeRequested())
    assert run.state.deadline == run.now + 10


def test_joining_a_paused_run_opens_no_round_until_it_resumes() -> None:
    run = in_phase(Phase.WAITING)
    run(PauseRequested())
    assert run(Joined(1)) == ()
    assert run.phase is Phase.PAUSED
    assert run(ResumeRequested()) == (RoundOpened(0, ids(0, 1)),)


def test_uploads_are_accepted_while_paused_and_close_the_round_on_resume() -> None:
    run = in_phase(Phase.COLLECTING)
    run(PauseRequested())
    assert run(Uploaded(0, 0), Uploaded(1, 0)) == ()
    assert run.phase is Phase.PAUSED
    assert run(ResumeRequested()) == (CloseRound(0, ids()),)


def test_reports_are_accepted_while_paused_and_finish_the_run_on_resume() -> None:
    run = in_phase(Phase.EVALUATING)
    run(PauseRequested())
    assert run(Reported(0, 1), Reported(1, 1)) == ()
    (ended,) = run(ResumeRequested())
    assert isinstance(ended, RunEnded)
    assert run.phase is Phase.FINISHED


def test_after_a_round_aggregated_while_paused_the_next_opens_on_resume() -> None:
    run = in_phase(Phase.AGGREGATING)
    run(PauseRequested(), Aggregated(0))
    assert (run.phase, run.state.held_phase, run.state.round) == (Phase.PAUSED, Phase.COLLECTING, 1)
    assert run.state.deadline is None
    assert run.after(10**6) == ()
    run(ResumeRequested())
    assert (run.phase, run.state.selected) == (Phase.COLLECTING, ids(0, 1))
    assert run.state.deadline == run.now + 10


def test_the_last_round_may_be_aggregated_while_paused() -> None:
    run = Run.collecting(1, rounds=1)
    run(Uploaded(0, 0), PauseRequested(), Aggregated(0))
    assert (run.phase, run.state.held_phase, run.state.round) == (Phase.PAUSED, Phase.EVALUATING, 1)
    run(ResumeRequested())
    assert run.phase is Phase.EVALUATING


def test_resuming_before_the_round_is_aggregated_waits_for_it() -> None:
    run = in_phase(Phase.AGGREGATING)
    run(PauseRequested())
    assert run(ResumeRequested()) == ()
    assert run.phase is Phase.AGGREGATING
    assert run(Aggregated(0)) == (RoundOpened(1, ids(0, 1)),)


def test_a_run_aggregated_while_paused_waits_with_too_few_members() -> None:
    run = in_phase(Phase.AGGREGATING)
    run(PauseRequested(), Left(1), Aggregated(0))
    assert (run.phase, run.state.held_phase) == (Phase.PAUSED, Phase.WAITING)
    run(ResumeRequested())
    assert run.phase is Phase.WAITING
    assert run(Joined(1)) == (RoundOpened(1, ids(0, 1)),)


def test_all_clients_may_leave_a_paused_round() -> None:
    run = in_phase(Phase.COLLECTING)
    run(PauseRequested(), Left(0), Left(1))
    assert (run.phase, run.state.held_phase) == (Phase.PAUSED, Phase.COLLECTING)
    run(ResumeRequested())
    assert run.phase is Phase.WAITING


# --- the ends ---


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("phase", ACTIVE)
@pytest.mark.parametrize(
    ("event", "outcome"), [(StopRequested("enough"), Phase.STOPPED), (RunFailed("no disk"), Phase.FAILED)]
)
def test_any_phase_can_be_stopped_or_fail(
    phase: Phase, paused: bool, event: StopRequested | RunFailed, outcome: Phase
) -> None:
    run = in_phase(phase)
    if paused:
        run(PauseRequested())
    (ended,) = run(event)
    assert ended == RunEnded(outcome, event.reason)
    assert (run.phase, run.state.reason) == (outcome, event.reason)
    assert run.state.deadline is None
    assert run.state.held_phase is None


EVERY_EVENT: list[Event] = [
    Joined(9),
    Left(0),
    Uploaded(1, 0),
    Reported(1, 1),
    Aggregated(0),
    Tick(),
    PauseRequested(),
    ResumeRequested(),
    StopRequested("again"),
    RunFailed("again"),
]


@pytest.mark.parametrize("event", EVERY_EVENT, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("outcome", [Phase.FINISHED, Phase.FAILED, Phase.STOPPED])
def test_a_run_that_has_ended_stays_ended(outcome: Phase, event: Event) -> None:
    state = RunState(phase=outcome, round=1, members=ids(0, 1), reason="why", deadline=0.0)
    assert step(state, event, policy(), now=100.0) == (state, ())


@pytest.mark.parametrize("outcome", [Phase.FINISHED, Phase.FAILED, Phase.STOPPED])
def test_connections_are_tracked_after_the_end(outcome: Phase) -> None:
    state = RunState(phase=outcome, round=1, members=ids(0))
    connected, effects = step(state, Connected(0), policy(), now=0.0)
    assert (connected, effects) == (replace(state, connected=ids(0)), ())
    assert step(connected, Disconnected(0), policy(), now=0.0) == (state, ())


def test_the_phases_that_are_final_are_the_three_ends() -> None:
    assert {phase for phase in Phase if phase.is_final} == {Phase.FINISHED, Phase.FAILED, Phase.STOPPED}


# --- participation ---


@settings(max_examples=150, deadline=None)
@given(
    members=st.frozensets(st.integers(0, 200), min_size=1, max_size=40),
    number=st.integers(0, 500),
    participation=st.floats(0.01, 1),
    min_clients=st.integers(1, 50),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_selection_consists_of_members_is_large_enough_and_reproducible(
    members: frozenset[int], number: int, participation: float, min_clients: int, seed: int
) -> None:
    rules = policy(participation=participation, min_clients=min_clients, seed=seed)
    chosen = select(members, number, rules)
    assert chosen <= members
    assert max(1, participation * len(members) - 1e-6) <= len(chosen) < participation * len(members) + 1
    assert chosen == select(frozenset(sorted(members, reverse=True)), number, rules)


@pytest.mark.parametrize(
    ("share", "members", "expected"),
    [(0.5, 10, 5), (0.1, 10, 1), (0.01, 10, 1), (0.25, 10, 3), (1.0, 10, 10), (0.07, 100, 7), (0.55, 100, 55)],
)
def test_a_share_of_the_members_is_selected_rounded_up(share: float, members: int, expected: int) -> None:
    rules = policy(participation=share, min_clients=1)
    assert len(select(frozenset(range(members)), 0, rules)) == expected


def test_a_large_quorum_does_not_select_more_clients() -> None:
    assert len(select(frozenset(range(10)), 0, policy(participation=0.1, min_clients=10))) == 1


def test_rounds_and_seeds_select_differently() -> None:
    members = frozenset(range(50))
    choices = {
        select(members, number, policy(participation=0.5, min_clients=1, seed=seed))
        for number in range(10)
        for seed in range(10)
    }
    assert len(choices) == 100


def test_over_many_rounds_every_member_is_selected() -> None:
    members, rules = frozenset(range(20)), policy(participation=0.2, min_clients=1, seed=3)
    turns = [client for number in range(200) for client in select(members, number, rules)]
    assert len(turns) == 800
    counts = [turns.count(client) for client in members]
    assert min(counts) > 20
    assert max(counts) < 60


def test_the_selection_is_the_same_in_every_version() -> None:
    chosen = select(frozenset(range(10)), 3, policy(participation=0.3, min_clients=1, seed=7))
    assert sorted(chosen) == [4, 6, 8]


# --- newcomers ---


def test_newcomers_take_part_in_the_last_rounds_and_the_others_in_those_before() -> None:
    run = Run(min_clients=3, rounds=3, newcomers=ids(2), newcomer_rounds=1)
    run(Joined(0), Joined(1), Joined(2))
    taking_part = []
    while run.phase is not Phase.EVALUATING:
        number = run.state.round
        taking_part.append((number, run.state.selected, run.state.observers))
        run(*(Uploaded(client, number) for client in run.state.selected), Aggregated(number))
    assert taking_part == [(0, ids(0, 1), ids()), (1, ids(0, 1), ids()), (2, ids(2), ids())]
    assert run.state.observers == ids(0, 1, 2)


def test_participation_is_a_share_of_those_who_take_part() -> None:
    run = Run(min_clients=6, rounds=3, participation=0.5, newcomers=ids(4, 5), newcomer_rounds=1)
    run(*(Joined(client) for client in range(6)))
    assert len(run.state.selected) == 2
    assert run.state.selected | run.state.observers == ids(0, 1, 2, 3)


def test_newcomers_alone_open_no_round_before_theirs() -> None:
    run = Run(min_clients=1, rounds=3, newcomers=ids(2), newcomer_rounds=1)
    run(Joined(2))
    assert run.phase is Phase.WAITING
    run(Joined(0))
    assert (run.phase, run.state.selected) == (Phase.COLLECTING, ids(0))
    run(Left(0))
    assert run.phase is Phase.WAITING


# --- purity ---


def test_a_step_reads_no_clock_and_keeps_no_memory() -> None:
    rules = policy(min_clients=1, deadline=timedelta(seconds=10))
    once: Any = step(RunState(), Joined(0), rules, now=123.5)
    assert once == step(RunState(), Joined(0), rules, now=123.5)
    assert once[0].deadline == 133.5
