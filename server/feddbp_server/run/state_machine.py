"""A run as a pure state machine: an event and the time go in, a new state and effects come out.

    WAITING --all joined, or join window over with quorum--> COLLECTING(r)
    COLLECTING(r) --all in, or deadline with quorum--> AGGREGATING(r) --> COLLECTING(r+1)
    ... --> EVALUATING --all reported, or deadline--> FINISHED
    any --> PAUSED, FAILED(reason), STOPPED(reason)

Members are the clients that take part in a round: those that joined and neither left nor missed a deadline while
disconnected. A client that crashes and reconnects in time stays a member, so a short absence changes no result.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from feddbp_common.seeding import derive_seed

ALL_DONE: Final = "all rounds are done"
_RETRY_ROUNDS: Final = 10
"""A client that was set aside is waited for in one of so many rounds: it may have recovered, and be the slowest."""


class Phase(StrEnum):
    """The phase of a run."""

    WAITING = "waiting"
    COLLECTING = "collecting"
    AGGREGATING = "aggregating"
    EVALUATING = "evaluating"
    PAUSED = "paused"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_final(self) -> bool:
        return self in (Phase.FINISHED, Phase.FAILED, Phase.STOPPED)

    @property
    def restored(self) -> Phase:
        """The phase after a restart: a round that was being closed is collecting again, with every upload in it."""
        return Phase.COLLECTING if self is Phase.AGGREGATING else self


@dataclass(frozen=True, kw_only=True)
class RoundPolicy:
    """When rounds open and close."""

    rounds: int
    min_clients: int
    deadline: timedelta | None
    participation: float
    max_extensions: int
    seed: int
    newcomers: frozenset[int] = frozenset()
    """Clients that take part only in the last rounds, without the others."""
    newcomer_rounds: int = 0
    clients: int = 0
    """Clients of the run, with ids 0 to n - 1."""
    join_window: timedelta | None = timedelta(0)
    """How long a run waits for missing clients after the last one has joined; None waits until all have."""
    stop_after: int = 0
    """Rounds without a gain in accuracy after which the run ends; 0 runs them all."""
    least_members: int = 0
    """Members without whom no round opens, whatever `min_clients` is: a secure sum of fewer is not agreed on."""
    gives_rounds_up: bool = False
    """Whether a round without enough uploads is closed with the state before it, up to `max_extensions` in a row: no
    client can join a round whose secure sum is agreed on, so that extending it would not help."""
    max_missed: int = 3
    """Rounds that a client may miss in a row before rounds no longer wait for it; 0 always waits."""

    def is_set_aside(self, missed: int) -> bool:
        """Whether rounds do not wait for a client that has missed this many in a row; now and then one does."""
        return bool(self.max_missed) and missed >= self.max_missed and missed % _RETRY_ROUNDS != 0

    def taking_part(self, members: frozenset[int], number: int) -> frozenset[int]:
        """The members that train or evaluate in a round."""
        if not self.newcomers:
            return members
        is_theirs = number >= self.rounds - self.newcomer_rounds
        return members & self.newcomers if is_theirs else members - self.newcomers

    def may_open(self, members: frozenset[int], number: int) -> bool:
        return len(members) >= self.fewest_members and bool(self.taking_part(members, number))

    @property
    def fewest_members(self) -> int:
        """Members without whom no round opens."""
        return max(self.min_clients, self.least_members)

    def awaited(self, state: RunState) -> frozenset[int]:
        """Clients for which a waiting run holds its next round back until the join window is over.

        Before the run has begun these are all that have not joined, later only those that took part before.
        """
        expected = state.joined if state.began_with else frozenset(range(self.clients))
        return self.taking_part(expected - state.blocked, state.round) - state.members

    def opens_at(self, state: RunState) -> float | None:
        """When a waiting run opens its next round without the missing clients; None: not before another one joins."""
        if not self.may_open(state.members, state.round):
            return None
        if self.join_window is None or state.last_join is None:
            return None
        return state.last_join + self.join_window.total_seconds()

    def opens(self, state: RunState, now: float) -> bool:
        """Whether a waiting run opens its next round."""
        opens_at = self.opens_at(state)
        is_over = opens_at is not None and now >= opens_at
        return self.may_open(state.members, state.round) and (is_over or self._all_joined(state))

    def _all_joined(self, state: RunState) -> bool:
        # numbers first: with thousands of clients, sets would be built for every event before the first round
        is_possible = len(state.members) + len(state.blocked) + len(self.newcomers) >= self.clients
        return (is_possible or state.began_with > 0) and not self.awaited(state)


class Best(NamedTuple):
    """The best accuracy of a run, and after how many rounds it was reached."""

    accuracy: float
    completed_rounds: int


@dataclass(frozen=True, kw_only=True)
class RunState:
    """The state of a run. `round` is the open round, or the number of completed ones."""

    phase: Phase = Phase.WAITING
    round: int = 0
    members: frozenset[int] = frozenset()
    connected: frozenset[int] = frozenset()
    selected: frozenset[int] = frozenset()
    """Members that train in the open round."""
    observers: frozenset[int] = frozenset()
    """Members that only evaluate and report in this phase. Clients that join later wait for the next round."""
    uploaded: frozenset[int] = frozenset()
    reported: frozenset[int] = frozenset()
    skipped: frozenset[int] = frozenset()
    """Clients that have said that they cannot complete the round."""
    set_aside: frozenset[int] = frozenset()
    """Clients that may upload, but have missed so many rounds that this one does not wait for them."""
    missed: Mapping[int, int] = field(default_factory=dict)
    """Rounds that clients have missed in a row; a client that has missed none is not in it."""
    deadline: float | None = None
    extensions: int = 0
    held_phase: Phase | None = None
    """The phase that a pause interrupted."""
    reason: str = ""
    joined: frozenset[int] = frozenset()
    """Clients that have ever joined; the store has a record of each."""
    began_with: int = 0
    """Members when the first round opened; 0 before that."""
    arrived: frozenset[int] = frozenset()
    """Clients that joined while the run waits: the first time counts for the join window, later ones do not."""
    last_join: float | None = None
    """When the last of them joined, or the server resumed the run."""
    blocked: frozenset[int] = frozenset()
    """Clients that an operator shuts out."""
    left_out: frozenset[int] = frozenset()
    """Clients whose newest upload was left out of an average: they receive nothing that was made from it."""
    best: Best | None = None
    """The best accuracy so far; only in a run that stops without a gain."""
    given_up: int = 0
    """Rounds in a row that were given up; only in a run that gives rounds up."""

    @property
    def missing(self) -> frozenset[int]:
        """Clients the phase waits for: selected ones that have not uploaded, observers that have not reported."""
        if self.phase.is_final:
            return frozenset()
        return self.silent - self.set_aside

    @property
    def is_waiting(self) -> bool:
        """Whether any client is missing; by numbers first, since every event asks and a run may have thousands."""
        excused = len(self.skipped) + len(self.set_aside)
        if len(self.selected) > len(self.uploaded) + excused or len(self.observers) > len(self.reported) + excused:
            return not self.phase.is_final
        return bool(self.missing)

    @property
    def silent(self) -> frozenset[int]:
        """Clients that take part in the phase and have neither completed it nor said that they cannot."""
        return ((self.selected - self.uploaded) | (self.observers - self.reported)) - self.skipped

    def uploads_needed(self, policy: RoundPolicy) -> int:
        return max(1, min(policy.min_clients, len(self.selected)))

    def waiting_outside(self, policy: RoundPolicy) -> frozenset[int]:
        """Members that joined after the round was opened, and could take part in it."""
        could = policy.taking_part(self.members & self.connected, self.round)
        return could - self.selected - self.observers

    def with_misses(self, clients: frozenset[int] | None = None) -> RunState:
        """Counts a missed round for these clients, or at its end for all that took part in it and are silent."""
        if clients is not None:
            return replace(
                self, missed={**self.missed, **{client: self.missed.get(client, 0) + 1 for client in clients}}
            )
        heard = (self.selected | self.observers) - self.silent
        missed = {client: rounds for client, rounds in self.missed.items() if client not in heard}
        return replace(self, missed=missed).with_misses(self.silent)

    def new_deadline(self, policy: RoundPolicy, now: float) -> float | None:
        """The deadline of a phase that begins, or is resumed, now; only phases that wait for clients have one."""
        if policy.deadline is None or self.phase not in (Phase.COLLECTING, Phase.EVALUATING):
            return None
        return now + policy.deadline.total_seconds()

    @property
    def durable(self) -> tuple[object, ...]:
        """The part that a snapshot holds; most events leave it alone."""
        return (
            self.phase.restored,
            self.held_phase,
            self.round,
            self.members,
            self.selected,
            self.observers,
            self.extensions,
            self.reason,
            self.began_with,
            self.blocked,
            self.left_out,
            self.skipped,
            self.set_aside,
            self.missed,
            self.best,
            self.given_up,
        )

    @property
    def client_facing(self) -> tuple[object, ...]:
        """The part that clients' events depend on; members that join or leave concern only themselves."""
        return self.phase, self.round, self.selected, self.observers


# --- events ---


@dataclass(frozen=True)
class Joined:
    client: int


@dataclass(frozen=True)
class Connected:
    client: int


@dataclass(frozen=True)
class Disconnected:
    client: int


@dataclass(frozen=True)
class Left:
    client: int


@dataclass(frozen=True)
class Blocked:
    client: int


@dataclass(frozen=True)
class Allowed:
    client: int


@dataclass(frozen=True)
class Uploaded:
    client: int
    round: int
    reported: bool = False
    """Whether the upload had the client's report on the round with it."""


@dataclass(frozen=True)
class Reported:
    client: int
    round: int


@dataclass(frozen=True)
class Skipped:
    """A client cannot complete the round, and stays for the next one."""

    client: int
    round: int


@dataclass(frozen=True)
class Aggregated:
    round: int
    left_out: frozenset[int] = frozenset()
    """Clients whose upload to the round was left out of the average."""
    accuracy: float | None = None
    """At the beginning of the round, on held-out samples if the run has them; None without reports."""
    given_up: bool = False
    """Whether the round gave nothing, and the state before it stays."""


@dataclass(frozen=True)
class Tick:
    """Time has passed; only needed when a deadline may have."""


@dataclass(frozen=True)
class PauseRequested:
    pass


@dataclass(frozen=True)
class ResumeRequested:
    pass


@dataclass(frozen=True)
class StopRequested:
    reason: str


@dataclass(frozen=True)
class RunFailed:
    """The run cannot continue."""

    reason: str


Event: TypeAlias = (
    Joined
    | Connected
    | Disconnected
    | Left
    | Blocked
    | Allowed
    | Uploaded
    | Reported
    | Skipped
    | Aggregated
    | Tick
    | PauseRequested
    | ResumeRequested
    | StopRequested
    | RunFailed
)

# --- effects ---


@dataclass(frozen=True)
class RoundOpened:
    round: int
    selected: frozenset[int]


@dataclass(frozen=True)
class RunBegan:
    """The first round opens although clients are missing: the join window is over."""

    members: frozenset[int]
    missing: frozenset[int]


@dataclass(frozen=True)
class CloseRound:
    """Asks for the aggregation of the round's uploads, to be followed by `Aggregated`."""

    round: int
    missing: frozenset[int]


@dataclass(frozen=True)
class DeadlineExtended:
    round: int
    extension: int
    missing: frozenset[int]


@dataclass(frozen=True)
class MembersDropped:
    """Clients that were disconnected at the deadline; they may join again."""

    clients: frozenset[int]


@dataclass(frozen=True)
class ClientsSetAside:
    """Clients that have missed so many rounds in a row that rounds no longer wait for them until they upload."""

    clients: frozenset[int]


@dataclass(frozen=True)
class RoundAbandoned:
    """Every client selected for the round has left; it opens again when there are enough clients."""

    round: int


@dataclass(frozen=True)
class FinalEvaluationOpened:
    round: int
    reason: str = ALL_DONE


@dataclass(frozen=True)
class RunEnded:
    phase: Phase
    reason: str


Effect: TypeAlias = (
    RoundOpened
    | RunBegan
    | CloseRound
    | DeadlineExtended
    | MembersDropped
    | ClientsSetAside
    | RoundAbandoned
    | FinalEvaluationOpened
    | RunEnded
)
Step: TypeAlias = tuple[RunState, tuple[Effect, ...]]


def step(state: RunState, event: Event, policy: RoundPolicy, now: float) -> Step:
    """Applies an event to the run. Events that are out of date change nothing."""
    if state.phase.is_final and not isinstance(event, Connected | Disconnected):
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
        case Aggregated(number, left_out, accuracy, given_up) if number == state.round and Phase.AGGREGATING in (
            state.phase,
            state.held_phase,
        ):
            left_out = (state.left_out - state.uploaded) | left_out
            counted = replace(
                state,
                left_out=left_out,
                best=_best(state, accuracy, policy),
                given_up=state.given_up + 1 if given_up else 0,
            )
            if given_up and counted.given_up == policy.rounds:
                return _end(counted, Phase.FAILED, f"none of {_counted(policy.rounds, 'round')} gave a sum of clients")
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
    """The members that train in a round: a seeded sample that depends only on the members and the round."""
    # 0.07 * 100 is slightly above 7 in binary floating point, and must not become 8
    count = max(1, math.ceil(policy.participation * len(members) - 1e-9))
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
    rounds = _counted(policy.stop_after, "round")
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
    if policy.gives_rounds_up:
        return _give_up(state, policy)
    if state.extensions < policy.max_extensions:
        return _extend(state, policy, now)
    return _fail_without_uploads(state, policy)


def _give_up(state: RunState, policy: RoundPolicy) -> Step:
    return _close_round(state) if state.given_up < policy.max_extensions else _fail_without_uploads(state, policy)


def _without_enough_uploads(state: RunState, policy: RoundPolicy, now: float) -> Step:
    """Every client of the round has uploaded or skipped it: only those that wait outside can still help."""
    if policy.gives_rounds_up:
        return _give_up(state, policy)
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
    if policy.gives_rounds_up:  # the others may only have waited for those that are lost
        silent = (silent - state.connected) or silent
    reasons = [f"missing: {_names(silent)}"] if silent or not state.skipped else []
    if state.skipped:
        reasons.append(f"not able to train: {_names(state.skipped)}")
    return _end(
        state,
        Phase.FAILED,
        f"round {state.round + 1} needs {_counted(state.uploads_needed(policy), 'upload')} and has "
        f"{len(state.uploaded)} after {_chances(state, policy)}; {'; '.join(reasons)}",
    )


def _chances(state: RunState, policy: RoundPolicy) -> str:
    if policy.gives_rounds_up:
        return f"{_counted(state.given_up, 'round')} that gave nothing"
    return _counted(state.extensions, "extension")


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
    if Phase.AGGREGATING not in (state.phase, state.held_phase):
        state = replace(state, uploaded=state.uploaded - {client})
    return _drop(replace(state, blocked=state.blocked | {client}), frozenset({client}))


def _deadline(policy: RoundPolicy, now: float) -> float | None:
    return None if policy.deadline is None else now + policy.deadline.total_seconds()


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _names(clients: frozenset[int]) -> str:
    return ", ".join(f"client {client}" for client in sorted(clients)) or "no client"
