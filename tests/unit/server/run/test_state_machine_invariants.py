"""Invariants of the state machine under any order of events."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from run_machine import Run

from feddbp_server.run.state_machine.events import (
    Aggregated,
    CloseRound,
    Connected,
    DeadlineExtended,
    Disconnected,
    Effect,
    Event,
    FinalEvaluationOpened,
    Joined,
    Left,
    PauseRequested,
    Reported,
    ResumeRequested,
    RoundOpened,
    RunEnded,
    RunFailed,
    Skipped,
    StopRequested,
    Tick,
    Uploaded,
)
from feddbp_server.run.state_machine.state import Phase, RunState
from feddbp_server.run.state_machine.transitions import step

CLIENTS = st.integers(0, 4)
policies = st.fixed_dictionaries(
    {
        "rounds": st.integers(1, 3),
        "min_clients": st.integers(1, 3),
        "deadline": st.sampled_from([None, timedelta(seconds=10)]),
        "participation": st.sampled_from([0.3, 0.5, 1.0]),
        "max_extensions": st.integers(0, 2),
        "seed": st.integers(0, 9),
    }
)


class LifeOfARun(RuleBasedStateMachine):
    """Clients, operators and the clock act at random; aggregation completes when it was requested."""

    def __init__(self) -> None:
        super().__init__()
        self.run = Run()
        self.log: list[tuple[Event, float]] = []
        self.effects: list[Effect] = []
        self.history: list[RunState] = [self.run.state]

    @initialize(options=policies)
    def begin(self, options: dict[str, Any]) -> None:
        self.run = Run(**options)

    def happen(self, event: Event) -> None:
        before = self.run.state
        effects = self.run(event)
        self.log.append((event, self.run.now))
        self.effects += effects
        self.history.append(self.run.state)
        self.check_step(before, event, self.run.state, effects)

    # --- events ---

    @rule(client=CLIENTS)
    def join(self, client: int) -> None:
        self.happen(Joined(client))

    @rule(client=CLIENTS)
    def connect(self, client: int) -> None:
        self.happen(Connected(client))

    @rule(client=CLIENTS)
    def disconnect(self, client: int) -> None:
        self.happen(Disconnected(client))

    @rule(client=CLIENTS)
    def leave(self, client: int) -> None:
        self.happen(Left(client))

    @rule(client=CLIENTS, behind=st.integers(-1, 1), reported=st.booleans())
    def upload(self, client: int, behind: int, reported: bool) -> None:
        self.happen(Uploaded(client, self.run.state.round - behind, reported=reported))

    @precondition(lambda self: self.run.state.missing and not self.run.phase.is_final)
    @rule(data=st.data())
    def do_what_is_awaited(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(sorted(self.run.state.missing)))
        waits_for_upload = client in self.run.state.selected
        happened = Uploaded if waits_for_upload else Reported
        self.happen(happened(client, self.run.state.round))
        assert client not in self.run.state.missing or self.run.state.round > self.history[-2].round

    @rule(client=CLIENTS, behind=st.integers(-1, 1))
    def report(self, client: int, behind: int) -> None:
        self.happen(Reported(client, self.run.state.round - behind))

    @rule(client=CLIENTS, behind=st.integers(-1, 1))
    def skip(self, client: int, behind: int) -> None:
        self.happen(Skipped(client, self.run.state.round - behind))

    @precondition(lambda self: Phase.AGGREGATING in (self.run.state.phase, self.run.state.held_phase))
    @rule()
    def aggregated(self) -> None:
        self.happen(Aggregated(self.run.state.round))

    @rule(number=st.integers(0, 3))
    def stray_aggregate(self, number: int) -> None:
        if number != self.run.state.round:
            self.happen(Aggregated(number))

    @rule(seconds=st.sampled_from([1.0, 5.0, 10.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.run.now += seconds
        self.happen(Tick())

    @rule()
    def pause(self) -> None:
        self.happen(PauseRequested())

    @rule()
    def resume(self) -> None:
        self.happen(ResumeRequested())

    @precondition(lambda self: len(self.log) > 15)
    @rule(event=st.sampled_from([StopRequested("enough"), RunFailed("no disk")]))
    def end(self, event: Event) -> None:
        self.happen(event)

    # --- invariants ---

    @invariant()
    def a_run_waits_exactly_while_a_client_is_missing(self) -> None:
        assert self.run.state.is_waiting == bool(self.run.state.missing)

    def check_step(self, before: RunState, event: Event, after: RunState, effects: tuple[Effect, ...]) -> None:
        assert before.round <= after.round <= before.round + 1
        if before.phase.is_final:
            assert effects == ()
            assert after == replace(before, connected=after.connected)
        if isinstance(event, Uploaded):
            # a repeated upload changes nothing
            again, more = step(after, event, self.run.policy, self.run.now)
            assert again.uploaded == after.uploaded
            assert more == ()
        if before.phase is Phase.PAUSED and not isinstance(event, ResumeRequested | StopRequested | RunFailed):
            assert after.phase is Phase.PAUSED
            assert not any(isinstance(effect, CloseRound | RunEnded) for effect in effects)
        if after.phase is Phase.COLLECTING and before.phase is Phase.COLLECTING and after.round == before.round:
            extended = any(isinstance(effect, DeadlineExtended) for effect in effects)
            assert after.selected <= before.selected or extended or RoundOpened(after.round, after.selected) in effects

    @invariant()
    def uploads_are_of_those_selected(self) -> None:
        assert self.run.state.uploaded <= self.run.state.selected

    @invariant()
    def whoever_trains_or_watches_is_a_member(self) -> None:
        state = self.run.state
        assert state.selected - state.uploaded <= state.members
        assert state.observers <= state.members
        assert not state.selected & state.observers

    @invariant()
    def the_round_is_one_of_the_run(self) -> None:
        state = self.run.state
        assert 0 <= state.round <= self.run.policy.rounds
        assert (state.round == self.run.policy.rounds) == (
            FinalEvaluationOpened(self.run.policy.rounds) in self.effects
        )

    @invariant()
    def a_deadline_is_there_exactly_while_it_can_come(self) -> None:
        state = self.run.state
        if self.run.policy.deadline is None or state.phase not in (Phase.COLLECTING, Phase.EVALUATING):
            assert state.deadline is None
        else:
            assert state.deadline is not None

    @invariant()
    def only_a_pause_holds_a_phase(self) -> None:
        state = self.run.state
        assert (state.held_phase is not None) == (state.phase is Phase.PAUSED)
        assert state.held_phase is not Phase.PAUSED

    @invariant()
    def every_round_closes_once_and_in_turn(self) -> None:
        closed = [effect.round for effect in self.effects if isinstance(effect, CloseRound)]
        assert closed == list(range(len(closed)))
        state = self.run.state
        closing = Phase.AGGREGATING in (state.phase, state.held_phase)
        if not state.phase.is_final:
            assert len(closed) == state.round + closing

    @invariant()
    def no_round_opens_before_the_last_has_closed(self) -> None:
        open_round = None
        closed = -1
        for effect in self.effects:
            if isinstance(effect, RoundOpened):
                assert effect.round == closed + 1
                open_round = effect.round
            elif isinstance(effect, CloseRound):
                assert effect.round == open_round
                closed = effect.round

    @invariant()
    def a_closing_round_has_contributions(self) -> None:
        if self.run.state.phase is Phase.AGGREGATING:
            assert self.run.state.uploaded

    @invariant()
    def the_end_is_told_once_and_with_a_reason(self) -> None:
        ends = [effect for effect in self.effects if isinstance(effect, RunEnded)]
        assert len(ends) == self.run.state.phase.is_final
        if ends:
            assert ends == [RunEnded(self.run.state.phase, self.run.state.reason)]
            assert self.run.state.reason

    @invariant()
    def extensions_are_within_their_limit(self) -> None:
        assert self.run.state.extensions <= self.run.policy.max_extensions

    def teardown(self) -> None:
        """The same events at the same times give the same states and effects."""
        state = RunState()
        effects: list[Effect] = []
        for (event, now), expected in zip(self.log, self.history[1:], strict=True):
            state, caused = step(state, event, self.run.policy, now)
            effects += caused
            assert state == expected
        assert effects == self.effects


TestLifeOfARun = LifeOfARun.TestCase
TestLifeOfARun.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


events = st.one_of(
    st.builds(Joined, CLIENTS),
    st.builds(Left, CLIENTS),
    st.builds(Connected, CLIENTS),
    st.builds(Uploaded, CLIENTS, st.integers(0, 2)),
    st.builds(Reported, CLIENTS, st.integers(0, 2)),
    st.builds(Aggregated, st.integers(0, 2)),
    st.just(PauseRequested()),
    st.just(ResumeRequested()),
)


@settings(max_examples=120, deadline=None)
@given(options=policies, sequence=st.lists(events, max_size=25))
def test_a_run_never_waits_without_a_missing_client(options: dict[str, Any], sequence: list[Event]) -> None:
    """It always waits for something definite: a quorum, an upload, or a report."""
    run = Run(**options)
    for event in sequence:
        run(event)
        match run.phase:
            case Phase.WAITING:
                assert len(run.state.members) < run.policy.min_clients
            case Phase.COLLECTING | Phase.EVALUATING:
                assert run.state.missing
