"""What the page shows of a run: built from events, sent whole once and then in parts as it grows."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from feddbp_common.printable import printable, printable_values

COLUMNS: Final = ("client", "round", "accuracy", "samples", "train", "evaluate", "collect", "up", "down", "trained")
"""Of a report, in the order in which the page receives them."""

_NAME: Final = 64
"""Characters of a name."""

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ReportRow:
    """One client's results in one round."""

    client: int
    round: int
    accuracy: float
    samples: int
    train: float
    evaluate: float
    collect: float
    up: int
    down: int
    has_trained: bool
    losses: Mapping[str, float | None]

    def columns(self) -> list[float | int]:
        return [
            self.client,
            self.round,
            round(self.accuracy, 5),
            self.samples,
            round(self.train, 3),
            round(self.evaluate, 3),
            round(self.collect, 3),
            self.up,
            self.down,
            int(self.has_trained),
        ]


@dataclass
class _Losses:
    """Means over clients of every loss term, by round."""

    sums: dict[int, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, row: ReportRow) -> None:
        for name, value in row.losses.items():
            if value is not None and math.isfinite(value):
                entry = self.sums[row.round].setdefault(printable(name, _NAME), [0.0, 0.0])
                entry[0] += value
                entry[1] += 1

    def of(self, rounds: Iterable[int]) -> dict[int, dict[str, float]]:
        return {
            number: {name: float(f"{total / count:.6g}") for name, (total, count) in self.sums[number].items()}
            for number in rounds
            if number in self.sums
        }


@dataclass
class Cursor:
    """What one page has received."""

    generation: int = -1
    reports: int = 0
    rounds: int = 0
    info: int = -1
    status: int = -1
    activities: dict[int, Json] = field(default_factory=dict)


class RunModel:
    """Owns everything known of one run; changes on the event loop wake those who wait for them."""

    def __init__(self) -> None:
        self.generation = 0
        """Grows when the model begins anew, because the server holds another run."""
        self._changed = asyncio.Event()
        self._forget()

    def _forget(self) -> None:
        self.run: Json = {}
        self.clients: dict[int, Json] = {}
        self.status: Json = {}
        self.activities: dict[int, Json] = {}
        self.reports: list[list[float | int]] = []
        self.rounds: list[Json] = []
        self.complete = False
        """Whether the history so far has arrived."""
        self._losses = _Losses()
        self._seen: set[tuple[int, int]] = set()
        self._closed: set[int] = set()
        self._info_version = 0
        self._status_version = 0

    # --- what is known ---

    def start(self, run: Json) -> None:
        if self.run and self.run["id"] != run["id"]:
            self.generation += 1
            self._forget()
        self.run = printable_values(run)
        self._info_changed()

    def join(self, given: Json) -> None:
        client: Json = printable_values(given)
        if self.clients.get(client["id"]) != client:
            self.clients[client["id"]] = client
            self._info_changed()

    def report(self, row: ReportRow) -> None:
        if (row.client, row.round) in self._seen:
            return
        self._seen.add((row.client, row.round))
        self.reports.append(row.columns())
        self._losses.add(row)
        self._wake()

    def close_round(self, closed: Json) -> None:
        if closed["round"] in self._closed:
            return
        self._closed.add(closed["round"])
        self.rounds.append(closed)
        self._wake()

    def set_status(self, status: Json, activities: dict[int, Json]) -> None:
        self.status = printable_values(status)
        self.activities = {client: printable_values(activity) for client, activity in activities.items()}
        self._status_version += 1
        self._wake()

    def set_complete(self) -> None:
        self.complete = True
        self._info_changed()

    @property
    def newest_round(self) -> int:
        return max((int(row[1]) for row in self.reports[-2000:]), default=0)

    # --- what a page receives ---

    def changes_since(self, cursor: Cursor) -> Json:
        """What the page does not have yet; moves the cursor. Empty if there is nothing."""
        changes: Json = {}
        if cursor.generation != self.generation:
            fresh = Cursor(generation=self.generation)
            vars(cursor).update(vars(fresh))
            changes["reset"] = True
        if cursor.info != self._info_version:
            changes |= {"run": self.run, "complete": self.complete}
            changes["clients"] = [self.clients[number] for number in sorted(self.clients)]
            cursor.info = self._info_version
        if cursor.reports < len(self.reports):
            rows = self.reports[cursor.reports :]
            changes["reports"] = [list(column) for column in zip(*rows, strict=True)]
            changes["losses"] = self._losses.of({int(row[1]) for row in rows})
            cursor.reports = len(self.reports)
        if cursor.rounds < len(self.rounds):
            changes["rounds"] = self.rounds[cursor.rounds :]
            cursor.rounds = len(self.rounds)
        if cursor.status != self._status_version:
            changes["status"] = self.status
            moved = {number: row for number, row in self.activities.items() if cursor.activities.get(number) != row}
            changes["activities"] = moved
            cursor.activities = dict(self.activities)
            cursor.status = self._status_version
        return changes

    def upcoming_change(self) -> asyncio.Event:
        return self._changed

    def _info_changed(self) -> None:
        self._info_version += 1
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
