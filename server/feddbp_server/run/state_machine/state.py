"""The state of a run, and the policy by which its rounds open and close."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import Final, NamedTuple

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
    """Members without whom no round opens, whatever `min_clients` is, and who are selected for it, whatever
    `participation` is: a secure sum of fewer is not agreed on."""
    closes_without_result: bool = False
    """Whether a round without enough uploads is closed with the state before it, up to `max_extensions` in a row: no
    client can join a round whose secure sum is agreed on, so that extending it would not help."""
    max_missed: int = 3
    """Rounds that a client may miss in a row before rounds no longer wait for it; 0 always waits."""

    def is_set_aside(self, missed: int) -> bool:
        """Whether rounds do not wait for a client that has missed this many in a row; now and then one does."""
        if not self.max_missed or missed < self.max_missed:
            return False
        return missed == self.max_missed or missed % _RETRY_ROUNDS != 0

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
    rounds_without_result: int = 0
    """Rounds in a row that left the state before them; only in a run that closes such rounds."""

    informed: frozenset[int] = frozenset()
    """Clients that have received the end of the run."""

    @property
    def excluded(self) -> frozenset[int]:
        """Clients of whose newest upload nobody receives anything: left out of an average, or shut out."""
        return self.left_out | self.blocked

    @property
    def is_aggregating(self) -> bool:
        """Whether the round's uploads are decided and it is being closed, also while the run is paused."""
        return Phase.AGGREGATING in (self.phase, self.held_phase)

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
            self.rounds_without_result,
            self.informed,
        )

    @property
    def client_facing(self) -> tuple[object, ...]:
        """The part that clients' events depend on; members that join or leave concern only themselves."""
        return self.phase, self.round, self.selected, self.observers
