"""The state of a run in the store: its snapshot, and how it is loaded and saved."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from feddbp_server.run.state_machine.state import Best, Phase, RunState
from feddbp_server.store import AggregateRecord, ClientRecord, MonitoredStore, Store


@dataclass(frozen=True, kw_only=True)
class RunSnapshot:
    """The durable part of a state: without connections and deadlines; uploads have a table of their own."""

    state: RunState
    seconds: float
    """For which all servers so far have served the run, until it was over."""

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
                **({"given_up": state.rounds_without_result} if state.rounds_without_result else {}),
                **({"informed": sorted(state.informed)} if state.informed else {}),
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
            rounds_without_result=stored.get("given_up", 0),
            informed=frozenset(stored.get("informed", ())),
        )
        # snapshots of early versions have no seconds: such a run is timed from here
        return cls(state=state, seconds=stored.get("seconds", 0.0))


def _began_with(stored: dict[str, Any]) -> int:
    """Of a snapshot of 0.1.0, in which a run had begun as soon as a round was open."""
    has_begun = stored["round"] > 0 or (stored["held_phase"] or stored["phase"]) != Phase.WAITING
    return len(stored["members"]) if has_begun else 0


class StoredState:
    """Loads and saves the durable part of a run's state, and the time for which the run has been served."""

    def __init__(self, store: MonitoredStore, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._started_at = clock()
        """Moved back by the time for which earlier servers served the run."""
        self._seconds_at_end: float | None = None
        self._new_members: set[int] = set()
        """Of the new members in the store, those that joined this server."""

    @property
    def seconds_served(self) -> float:
        """For which all servers so far have served the run, until it was over."""
        return self._clock() - self._started_at if self._seconds_at_end is None else self._seconds_at_end

    async def load(self) -> RunState | None:
        """The state with members and uploads that are newer than its snapshot; None of a run that nobody joined."""
        loaded = await self._store.run(_load)
        if loaded is None:
            return None
        self._started_at = self._clock() - loaded.seconds
        self._stop_at_end(loaded)
        return loaded.state

    async def save_join(self, record: ClientRecord) -> None:
        """Saves a client's new session, and the client as a member: a row each, whatever the number of members."""

        def save(store: Store) -> None:
            store.save_client(record)
            store.add_new_member(record.client_id)

        await self._store.run(save)
        self._new_members.add(record.client_id)

    def has_join(self, client_id: int) -> bool:
        """Whether a client's join is still stored: a step that was saved after it may have dropped the client."""
        return client_id in self._new_members

    async def save(self, before: RunState, state: RunState, closed: ClientRecord | None = None) -> None:
        """Saves a step of the run and the session that it closes, and deletes the uploads that it withdraws."""
        snapshot, decided = self._snapshot(state), before.members | state.members

        def save(store: Store) -> None:
            for client_id in sorted(withdrawn(before, state)):
                store.forget_upload(client_id, before.round)
            if closed is not None:
                store.save_client(closed)
            _save(store, snapshot, decided)

        await self._store.run(save)
        self._adopt(snapshot, decided)

    async def close_round(self, before: RunState, state: RunState, aggregate: AggregateRecord) -> None:
        """Saves the step that closes a round together with its aggregate, and deletes what is no longer needed."""
        snapshot, decided = self._snapshot(state), before.members | state.members
        await self._store.tidy(lambda store: _close(store, aggregate, snapshot, decided))
        self._adopt(snapshot, decided)

    def _snapshot(self, state: RunState) -> RunSnapshot:
        return RunSnapshot(state=state, seconds=self.seconds_served)

    def _adopt(self, saved: RunSnapshot, decided: frozenset[int]) -> None:
        self._new_members -= decided
        self._stop_at_end(saved)

    def _stop_at_end(self, snapshot: RunSnapshot) -> None:
        """Of a run that is over the time no longer runs: a server waits for late reports, perhaps after a restart."""
        if snapshot.state.phase.is_final:
            self._seconds_at_end = snapshot.seconds


def withdrawn(before: RunState, state: RunState) -> frozenset[int]:
    """Clients whose uploads to the open round a step takes back: those that it blocks, unless the round is closed.

    Not only those in `uploaded`: an upload is stored before its event is applied.
    """
    return frozenset() if before.is_aggregating else state.blocked - before.blocked


def _load(store: Store) -> RunSnapshot | None:
    text, new_members = store.snapshot(), store.new_members()
    if text is None and not new_members:
        return None
    snapshot = RunSnapshot(state=RunState(), seconds=0.0) if text is None else RunSnapshot.from_json(text)
    state = snapshot.state
    uploaded = frozenset(record.client_id for record in store.uploads(state.round))
    return replace(snapshot, state=replace(state, members=state.members | new_members, uploaded=uploaded))


def _save(store: Store, snapshot: RunSnapshot, decided: frozenset[int]) -> None:
    """`decided` are the clients of which the snapshot says whether they are members: not one that is about to join."""
    store.save_snapshot(snapshot.to_json())
    store.forget_new_members(decided)


def _close(store: Store, aggregate: AggregateRecord, snapshot: RunSnapshot, decided: frozenset[int]) -> None:
    store.save_aggregate(aggregate)
    _save(store, snapshot, decided)
    store.forget_superseded_uploads(aggregate.completed_rounds)
    store.forget_sum_records(aggregate.completed_rounds)
