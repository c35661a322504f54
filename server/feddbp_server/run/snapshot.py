"""The snapshot of a run's state in the store."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from feddbp_server.run.state_machine.state import Best, Phase, RunState


@dataclass(frozen=True, kw_only=True)
class RunSnapshot:
    """The durable part of a state: without connections and deadlines; uploads have a table of their own."""

    state: RunState
    seconds: float
    """For which all servers so far have served the run."""

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
                "began_with": state.began_with,
                **({"blocked": sorted(state.blocked)} if state.blocked else {}),
                "left_out": sorted(state.left_out),
                "skipped": sorted(state.skipped),
                "set_aside": sorted(state.set_aside),
                "missed": sorted(state.missed.items()),
                **({"best": state.best} if state.best else {}),
                **({"given_up": state.given_up} if state.given_up else {}),
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
            began_with=stored.get("began_with", _began_with(stored)),
            blocked=frozenset(stored.get("blocked", ())),
            left_out=frozenset(stored.get("left_out", ())),
            skipped=frozenset(stored.get("skipped", ())),
            set_aside=frozenset(stored.get("set_aside", ())),
            missed=dict(stored.get("missed", ())),
            best=Best(*stored["best"]) if "best" in stored else None,
            given_up=stored.get("given_up", 0),
        )
        # snapshots of early versions have no seconds: such a run is timed from here
        return cls(state=state, seconds=stored.get("seconds", 0.0))


def _began_with(stored: dict[str, Any]) -> int:
    """Of a snapshot of 0.1.0, in which a run had begun as soon as a round was open."""
    has_begun = stored["round"] > 0 or (stored["held_phase"] or stored["phase"]) != Phase.WAITING
    return len(stored["members"]) if has_begun else 0
