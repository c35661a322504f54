"""The durable part of the run's state, as it is kept in the store."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from feddbp_server.run.state_machine import Phase, RunState


@dataclass(frozen=True, kw_only=True)
class RunSnapshot:
    """What of a state survives a restart: neither connections nor deadlines, and uploads have a table of their own."""

    state: RunState
    seconds: float
    """For which the run has been served, by all its servers so far."""

    def to_json(self) -> str:
        state = self.state
        return json.dumps(
            {
                "phase": state.phase.restored.value,
                "held_phase": state.held_phase.restored.value if state.held_phase else None,
                "round": state.round,
                "members": sorted(state.members),
                "selected": sorted(state.selected),
                "observers": sorted(state.observers),
                "extensions": state.extensions,
                "reason": state.reason,
                "seconds": self.seconds,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> RunSnapshot:
        stored: dict[str, Any] = json.loads(text)
        state = RunState(
            phase=Phase(stored["phase"]),
            held_phase=Phase(stored["held_phase"]) if stored["held_phase"] else None,
            round=stored["round"],
            members=frozenset(stored["members"]),
            selected=frozenset(stored["selected"]),
            observers=frozenset(stored["observers"]),
            extensions=stored["extensions"],
            reason=stored["reason"],
        )
        # a run that an earlier version began is timed from here
        return cls(state=state, seconds=stored.get("seconds", 0.0))
