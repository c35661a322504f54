"""What an event does to a run."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import TypeAlias

from feddbp_common.humanize import listed_ids, quantity
from feddbp_common.seeding import derive_seed
from feddbp_server.run.state_machine.events import (
    ALL_DONE,
    Aggregated,
    Allowed,
    Blocked,
    ClientsSetAside,
    CloseRound,
    Connected,
    DeadlineExtended,
    Disconnected,
    Effect,
    EndReceived,
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
    RunBegan,
    RunEnded,
    RunFailed,
    Skipped,
    StopRequested,
    Tick,
    Uploaded,
)
from feddbp_server.run.state_machine.state import Best, Phase, RoundPolicy, RunState

Step: TypeAlias = tuple[RunState, tuple[Effect, ...]]


def step(state: RunState, event: Event, policy: RoundPolicy, now: float) -> Step:
    """Applies an event to the run. Events that are out of date change nothing."""
    if state.phase.is_final and not isinstance(event, Connected | Disconnected | EndReceived):
        return state, ()
    return _advance(*_record(state, event, policy, now), policy, now)


def _record(state: RunState, event: Event, policy: RoundPolicy, now: float) -> Step:
    """Records the event itself; `_advance` derives what follows from it."""
    match event:
        case Joined(client):
            return _join(state, client, now), ()
        case Connected(client):
            return replace(state, connected=state.connected | {client}), ()
        case Disconnected(client):
            return replace(state, connected=state.connected - {client}), ()
        case Left(client):
            return _drop(state, frozenset({client})), ()
        case Blocked(client):
            return _block(state, client), ()
        case Allowed(client):
            return replace(state, blocked=state.blocked - {client}), ()
        case Uploaded(client, number, reported) if number == state.round:
            return _upload(state, client, reported=reported), ()
        case Reported(client, number) if number == state.round:
            return replace(state, reported=state.reported | {client}), ()
        case Skipped(client, number) if number == state.round and client in state.selected | state.observers:
            return replace(state, skipped=state.skipped | {client}), ()
        case Aggregated(number, left_out, accuracy, without_result) if number == state.round and state.is_aggregating:
            left_out = (state.left_out - state.uploaded) | left_out
            counted = replace(
                state,
                left_out=left_out,
                best=_best(state, accuracy, policy),
                rounds_without_result=state.rounds_without_result + 1 if without_result else 0,
            )
            if without_result and counted.rounds_without_result == policy.rounds:
                return _end(counted, Phase.FAILED, f"none of {quantity(policy.rounds, 'round')} gave a sum of clients")
            following, effects = _after_aggregation(counted.with_misses(), policy, now)
            return _hold(following) if state.phase is Phase.PAUSED else following, effects
        case Tick() if state.deadline is not None and now >= state.deadline:
            return _at_deadline(state, policy, now)
        case PauseRequested() if state.phase is not Phase.PAUSED:
            return _hold(state), ()
        case ResumeRequested() if state.phase is Phase.PAUSED and state.held_phase is not None:
            return _resume(state, policy, now), ()
        case StopRequested(reason):
            return _end(state, Phase.STOPPED, reason)
        case RunFailed(reason):
            return _end(state, Phase.FAILED, reason)
        case EndReceived(clients) if state.phase.is_final:
            return replace(state, informed=state.informed | clients), ()
    return state, ()


def _advance(state: RunState, effects: tuple[Effect, ...], policy: RoundPolicy, now: float) -> Step:
    """Advances to the next phase if the state allows it."""
    if state.phase is Phase.WAITING:
        if not policy.opens(state, now):
            return replace(state, deadline=policy.opens_at(state)), effects
        missing = frozenset() if state.began_with else policy.awaited(state)
        began = (RunBegan(state.members, missing),) if missing else ()
        state, opened = _open_round(state, state.round, policy, now)
        return state, (*effects, *began, *opened)
    if state.phase is Phase.COLLECTING and not state.selected and not state.uploaded:
        # no client is left to upload, and observers alone cannot make a round: wait as before the first
        waiting = replace(state, phase=Phase.WAITING, observers=frozenset(), deadline=None)
        # the remaining members may be enough
        return _advance(waiting, (*effects, RoundAbandoned(state.round)), policy, now)
    if state.phase is Phase.COLLECTING and not state.is_waiting:
        if len(state.uploaded) >= state.uploads_needed(policy):
            state, closing = _close_round(state)
            return state, (*effects, *closing)
        if not (state.selected - state.uploaded - state.skipped):  # nobody is left who could still upload
            state, decided = _without_enough_uploads(state, policy, now)
            return state, (*effects, *decided)
    if state.phase is Phase.EVALUATING and not state.is_waiting:
        state, ended = _end(state, Phase.FINISHED, state.reason or ALL_DONE)
        return state, (*effects, *ended)
    return state, effects


def select(members: frozenset[int], number: int, policy: RoundPolicy) -> frozenset[int]:
    """The members that train in a round: a seeded sample that depends only on the members and the round.

    Of a run that began without some clients, their share may be fewer than a secure sum takes.
    """
    # 0.07 * 100 is slightly above 7 in binary floating point, and must not become 8
    count = max(1, policy.least_members, math.ceil(policy.participation * len(members) - 1e-9))
    if count >= len(members):
        return members
    sampler = random.Random(derive_seed(policy.seed, "participation", number))  # noqa: S311 - not a secret
    return frozenset(sampler.sample(sorted(members), count))


def _open_round(state: RunState, number: int, policy: RoundPolicy, now: float) -> Step:
    members = policy.taking_part(state.members, number)
    selected = select(members, number, policy)
    set_aside = frozenset(client for client in members if policy.is_set_aside(state.missed.get(client, 0)))
    newly = frozenset(client for client in set_aside if state.missed[client] == policy.max_missed)
    opened = replace(
        state,
        phase=Phase.COLLECTING,
        round=number,
        selected=selected,
        observers=members - selected,
        uploaded=frozenset(),
        # a round that opens again keeps its reports: clients do not repeat them
        reported=state.reported if number == state.round else frozenset(),
        skipped=state.skipped if number == state.round else frozenset(),
        set_aside=set_aside,
        deadline=_deadline(policy, now),
        extensions=0,
        held_phase=None,
        began_with=state.began_with or len(state.members),
        arrived=frozenset(),
    )
    return opened, ((ClientsSetAside(newly),) if newly else ()) + (RoundOpened(number, selected),)


def _close_round(state: RunState) -> Step:
    closing = replace(state, phase=Phase.AGGREGATING, deadline=None)
    return closing, (CloseRound(state.round, state.missing),)


def _after_aggregation(state: RunState, policy: RoundPolicy, now: float) -> Step:
    completed = state.round + 1
    if completed < policy.rounds and not _is_stuck(state, policy):
        if policy.may_open(state.members, completed):
            return _open_round(state, completed, policy, now)
        none: frozenset[int] = frozenset()
        waiting = replace(
            state,
            phase=Phase.WAITING,
            round=completed,
            selected=none,
            observers=none,
            uploaded=none,
            reported=none,
            skipped=none,
            set_aside=none,
        )
        return waiting, ()
    evaluating = replace(
        state,
        phase=Phase.EVALUATING,
        round=completed,
        selected=frozenset(),
        observers=state.members,
        uploaded=frozenset(),
        reported=frozenset(),
        skipped=frozenset(),
        set_aside=frozenset(),  # of the last evaluation, every result counts
        deadline=_deadline(policy, now),
        extensions=0,
        reason=_no_gain(state.best, policy) if completed < policy.rounds and state.best else "",
    )
    return evaluating, (FinalEvaluationOpened(completed, evaluating.reason or ALL_DONE),)


def _best(state: RunState, accuracy: float | None, policy: RoundPolicy) -> Best | None:
    """The best accuracy, including that of the round which is closed; before the first round nothing is trained."""
    if not policy.stop_after or accuracy is None or state.round == 0:
        return state.best
    if state.best is not None and accuracy <= state.best.accuracy:
        return state.best
    return Best(accuracy, state.round)


def _is_stuck(state: RunState, policy: RoundPolicy) -> bool:
    best = state.best
    return policy.stop_after > 0 and best is not None and state.round - best.completed_rounds >= policy.stop_after


def _no_gain(best: Best, policy: RoundPolicy) -> str:
    rounds = quantity(policy.stop_after, "round")
    return f"no gain in accuracy for {rounds}, the best was {100 * best.accuracy:.1f} % after {best.completed_rounds}"


def _at_deadline(state: RunState, policy: RoundPolicy, now: float) -> Step:
    if state.phase is Phase.EVALUATING:
        reason = f"{state.reason}; " if state.reason else ""
        return _end(state, Phase.FINISHED, f"{reason}no final results from {_names(state.missing)}")
    if state.phase is not Phase.COLLECTING:
        return state, ()
    if len(state.uploaded) >= state.uploads_needed(policy):
        dropped = state.silent - state.connected
        closing, effects = _close_round(_drop(state.with_misses(dropped), dropped) if dropped else state)
        return closing, ((MembersDropped(dropped), *effects) if dropped else effects)
    if policy.closes_without_result:
        return _close_without_result(state, policy)
    if state.extensions < policy.max_extensions:
        return _extend(state, policy, now)
    return _fail_without_uploads(state, policy)


def _close_without_result(state: RunState, policy: RoundPolicy) -> Step:
    if state.rounds_without_result < policy.max_extensions:
        return _close_round(state)
    return _fail_without_uploads(state, policy)


def _without_enough_uploads(state: RunState, policy: RoundPolicy, now: float) -> Step:
    """Every client of the round has uploaded or skipped it: only those that wait outside can still help."""
    if policy.closes_without_result:
        return _close_without_result(state, policy)
    if state.waiting_outside(policy) and state.extensions < policy.max_extensions:
        return _extend(state, policy, now)
    return _fail_without_uploads(state, policy)


def _extend(state: RunState, policy: RoundPolicy, now: float) -> Step:
    """Members that joined after the round was opened enter it: the round waits for silent clients no longer alone."""
    extended = replace(
        state,
        selected=state.selected | state.waiting_outside(policy),
        deadline=_deadline(policy, now),
        extensions=state.extensions + 1,
    )
    return extended, (DeadlineExtended(state.round, extended.extensions, state.missing),)


def _fail_without_uploads(state: RunState, policy: RoundPolicy) -> Step:
    silent = state.selected - state.uploaded - state.skipped
    if policy.closes_without_result:  # the others may only have waited for those that are lost
        silent = (silent - state.connected) or silent
    reasons = [f"missing: {_names(silent)}"] if silent or not state.skipped else []
    if state.skipped:
        reasons.append(f"not able to train: {_names(state.skipped)}")
    return _end(
        state,
        Phase.FAILED,
        f"round {state.round + 1} needs {quantity(state.uploads_needed(policy), 'upload')} and has "
        f"{len(state.uploaded)} after {_chances(state, policy)}; {'; '.join(reasons)}",
    )


def _chances(state: RunState, policy: RoundPolicy) -> str:
    if policy.closes_without_result:
        return f"{quantity(state.rounds_without_result, 'round')} that gave nothing"
    return quantity(state.extensions, "extension")


def _hold(state: RunState) -> RunState:
    return replace(state, phase=Phase.PAUSED, held_phase=state.phase, deadline=None)


def _resume(state: RunState, policy: RoundPolicy, now: float) -> RunState:
    assert state.held_phase is not None
    resumed = replace(state, phase=state.held_phase, held_phase=None)
    return replace(resumed, deadline=resumed.new_deadline(policy, now))


def _end(state: RunState, phase: Phase, reason: str) -> Step:
    ended = replace(state, phase=phase, held_phase=None, deadline=None, reason=reason)
    return ended, (RunEnded(phase, reason),)


def _upload(state: RunState, client: int, *, reported: bool) -> RunState:
    return replace(
        state,
        uploaded=state.uploaded | {client} if client in state.selected else state.uploaded,
        reported=state.reported | {client} if reported else state.reported,
    )


def _join(state: RunState, client: int, now: float) -> RunState:
    is_new = client not in state.members | state.arrived
    return replace(
        state,
        members=state.members | {client},
        # not before it follows: an open stream may belong to the superseded session
        connected=state.connected - {client},
        joined=state.joined | {client},
        arrived=state.arrived | {client} if state.phase is Phase.WAITING else state.arrived,
        last_join=now if is_new else state.last_join,
    )


def _drop(state: RunState, clients: frozenset[int]) -> RunState:
    """Removes clients from the run; an upload that one of them has made still counts."""
    return replace(
        state,
        members=state.members - clients,
        connected=state.connected - clients,
        selected=state.selected - (clients - state.uploaded),
        observers=state.observers - clients,
        skipped=state.skipped - clients,
    )


def _block(state: RunState, client: int) -> RunState:
    """Removes a client with its upload of the open round; one that is being aggregated still counts."""
    if not state.is_aggregating:
        state = replace(state, uploaded=state.uploaded - {client})
    return _drop(replace(state, blocked=state.blocked | {client}), frozenset({client}))


def _deadline(policy: RoundPolicy, now: float) -> float | None:
    return None if policy.deadline is None else now + policy.deadline.total_seconds()


def _names(clients: frozenset[int]) -> str:
    """Of a bounded length: a reason is sent to every client, also as the message of a status."""
    if not clients:
        return "no client"
    return f"{'client' if len(clients) == 1 else 'clients'} {listed_ids(clients)}"
