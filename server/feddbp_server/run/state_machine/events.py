"""What happens to a run, its events, and what follows from them, its effects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from feddbp_server.run.state_machine.state import Phase

ALL_DONE: Final = "all rounds are done"


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
    without_result: bool = False
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


@dataclass(frozen=True)
class EndReceived:
    """Clients have received the end of the run."""

    clients: frozenset[int]


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
    | EndReceived
)


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
