"""An experiment with nothing left open: the cells it consists of, and where in the report each belongs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from feddbp_common.config.types import Frozen
from feddbp_lab.experiments.labels import heading
from feddbp_lab.experiments.spec import ReportSpec

Place = Mapping[str, int]
"""Where on some axes, by the index of the value."""


class Value(Frozen):
    """A value of an axis."""

    key: str
    """By which a report's `compare` names it."""
    label: str
    paper: str = ""
    """What stands in its place in the paper's table, if not the key."""


class Axis(Frozen):
    """An option whose values differ between runs, or a name for several that differ together."""

    name: str
    title: str
    values: tuple[Value, ...]


class Point(Frozen):
    """A place in a grid: the index of its value on every axis, and its cells by seed."""

    at: tuple[int, ...]
    cells: dict[int, str]


class Part(Frozen):
    """A grid: a point for every combination of its axes' values."""

    title: str
    axes: tuple[Axis, ...]
    report: ReportSpec
    points: tuple[Point, ...]

    def axis(self, name: str) -> Axis:
        return next(axis for axis in self.axes if axis.name == name)

    def places(self, names: Iterable[str]) -> list[Place]:
        """All combinations of the values of these axes, the last axis changing fastest."""
        axes = [self.axis(name) for name in names]
        combined = itertools.product(*(range(len(axis.values)) for axis in axes))
        return [{axis.name: index for axis, index in zip(axes, at, strict=True)} for at in combined]

    def point(self, place: Place) -> Point:
        at = tuple(place[axis.name] for axis in self.axes)
        return next(point for point in self.points if point.at == at)

    def labels(self, place: Place) -> tuple[str, ...]:
        return tuple(value.label for _, value in self._values(place))

    def key(self, place: Place) -> str:
        return " ".join(value.key for _, value in self._values(place))

    def paper_key(self, place: Place) -> str:
        return " ".join(value.paper or value.key for _, value in self._values(place))

    def heading(self, place: Place) -> str:
        return ", ".join(heading(axis.name, axis.title, value.label) for axis, value in self._values(place))

    def _values(self, place: Place) -> list[tuple[Axis, Value]]:
        return [(axis, axis.values[index]) for axis, index in ((self.axis(name), place[name]) for name in place)]


class Plan(Frozen):
    """An experiment with nothing left open: what a report needs even when defaults have changed since."""

    name: str
    title: str
    note: str
    profile: str | None
    overrides: dict[str, Any]
    seeds: tuple[int, ...]
    parts: tuple[Part, ...]

    @property
    def cell_ids(self) -> list[str]:
        """All of them, each once: first all of the first seed, so that a whole table is there early."""
        ids = (point.cells[seed] for seed in self.seeds for part in self.parts for point in part.points)
        return list(dict.fromkeys(ids))
