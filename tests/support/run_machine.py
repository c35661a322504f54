"""Drives the state machine step by step."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from feddbp_server.run.state_machine.events import Aggregated, Effect, Event, Joined, Tick, Uploaded
from feddbp_server.run.state_machine.state import Phase, RoundPolicy, RunState
from feddbp_server.run.state_machine.transitions import step


def ids(*clients: int) -> frozenset[int]:
    return frozenset(clients)


def policy(**changed: Any) -> RoundPolicy:
    deadline = changed.get("deadline", timedelta(seconds=10))
    if isinstance(deadline, int | float):
        changed["deadline"] = timedelta(seconds=deadline)
    usual: dict[str, Any] = {
        "rounds": 2,
        "min_clients": 2,
        "deadline": timedelta(seconds=10),
        "participation": 1.0,
        "max_extensions": 3,
        "seed": 0,
    }
    return RoundPolicy(**{**usual, **changed})


class Run:
    """A state machine with a manual clock."""

    def __init__(self, **changed: Any) -> None:
        self.policy = policy(**changed)
        self.state = RunState()
        self.now = 0.0

    @classmethod
    def collecting(cls, clients: int, **changed: Any) -> Run:
        """Round 0 is open, for clients 0 to n - 1 unless participation says otherwise."""
        run = cls(**{"min_clients": min(2, clients), **changed})
        run.state = RunState(members=frozenset(range(clients)))
        run(Joined(0))
        assert run.phase is Phase.COLLECTING
        return run

    @classmethod
    def evaluating(cls, clients: int, **changed: Any) -> Run:
        """The only round is done and every client evaluates."""
        run = cls.collecting(clients, **{**changed, "rounds": 1})
        run(*(Uploaded(client, 0) for client in range(clients)), Aggregated(0))
        assert run.phase is Phase.EVALUATING
        return run

    def __call__(self, *events: Event) -> tuple[Effect, ...]:
        effects: list[Effect] = []
        for event in events:
            self.state, caused = step(self.state, event, self.policy, self.now)
            effects.extend(caused)
        return tuple(effects)

    def after(self, seconds: float) -> tuple[Effect, ...]:
        self.now += seconds
        return self(Tick())

    @property
    def phase(self) -> Phase:
        return self.state.phase
