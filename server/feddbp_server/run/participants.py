"""Who takes part in a run and who is missing, as the log, the status and clients tell it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from feddbp_common.humanize import human_seconds, listed_ids, quantity
from feddbp_server.run.state_machine.state import Phase, RoundPolicy, RunState


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Clients of the open round that may be in its secure sum, as they are when they are asked for."""

    admitted: Callable[[], frozenset[int]]
    """Those that may be in the sum."""
    awaited: Callable[[], frozenset[int]]
    """Those among them for which steps wait."""


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A run that waits for clients: how many have joined, who is missing, and when it begins without them."""

    joined: int
    clients: int
    missing: frozenset[int]
    still_needed: int
    """Clients that have to join before any round opens."""
    seconds_left: float | None

    @classmethod
    def of(cls, state: RunState, policy: RoundPolicy, now: float) -> Waiting:
        opens_at = policy.opens_at(state)
        return cls(
            joined=len(state.members),
            clients=policy.clients,
            missing=policy.awaited(state),
            still_needed=max(0, policy.fewest_members - len(state.members)),
            seconds_left=None if opens_at is None else max(0.0, opens_at - now),
        )

    def __str__(self) -> str:
        parts = [f"{self.joined} of {self.clients} joined"]
        if self.missing:
            parts.append(f"missing {'client' if len(self.missing) == 1 else 'clients'} {listed_ids(self.missing)}")
        if self.still_needed:
            has = "has" if self.still_needed == 1 else "have"
            when = f"begins when {quantity(self.still_needed, 'more client')} {has} joined"
        elif self.seconds_left is None:
            when = "begins when all have joined"
        else:
            when = f"begins in {human_seconds(self.seconds_left)}"
        return f"{', '.join(parts)}; {when}"


def sole_participant(state: RunState, policy: RoundPolicy) -> int | None:
    """The only client in a run of several; None if there are more, or none, or newcomers have rounds of their own."""
    is_open = state.phase in (Phase.COLLECTING, Phase.AGGREGATING, Phase.EVALUATING)
    if not is_open or len(state.members) != 1 or policy.clients <= 1 or policy.newcomers:
        return None
    (client,) = state.members
    return client


def never_joined(state: RunState, policy: RoundPolicy) -> frozenset[int]:
    return frozenset(range(policy.clients)) - state.joined


def when_the_run_begins(policy: RoundPolicy) -> str:
    """For clients that wait."""
    # no count: an event to every client for every join would be a million messages for a thousand clients
    if policy.join_window is None:
        return f"the run begins when all {policy.clients} clients have joined"
    if policy.fewest_members >= policy.clients or policy.join_window == timedelta(0):
        has = "has" if policy.fewest_members == 1 else "have"
        return f"the run begins when {quantity(policy.fewest_members, 'client')} {has} joined"
    window = human_seconds(policy.join_window.total_seconds())
    return (
        f"the run begins when all {policy.clients} clients have joined, or {window} after the last one with at least "
        f"{policy.fewest_members}"
    )
