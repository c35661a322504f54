"""An experiment with nothing left open: the cells it consists of, and where in the report each belongs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, Final

from feddbp_common.config.catalog import DATASETS
from feddbp_common.config.types import FrozenModel
from feddbp_common.methods import METHODS, PRESET_MARK
from feddbp_lab.experiments.spec import ReportSpec

Coordinates = Mapping[str, int]
"""Where on some axes, by the index of the value."""


class Value(FrozenModel):
    """A value of an axis."""

    key: str
    """By which a report's `compare` names it."""
    label: str
    paper: str = ""
    """What stands in its place in the paper's table, if not the key."""


class Axis(FrozenModel):
    """An option whose values differ between runs, or a name for several that differ together."""

    name: str
    title: str
    values: tuple[Value, ...]


class Point(FrozenModel):
    """A place in a grid: the index of its value on every axis, and its cells by seed."""

    at: tuple[int, ...]
    cells: dict[int, str]


class Part(FrozenModel):
    """A grid: a point for every combination of its axes' values."""

    title: str
    axes: tuple[Axis, ...]
    report: ReportSpec
    points: tuple[Point, ...]

    def axis(self, name: str) -> Axis:
        return next(axis for axis in self.axes if axis.name == name)

    def places(self, names: Iterable[str]) -> list[Coordinates]:
        """All combinations of the values of these axes, the last axis changing fastest."""
        axes = [self.axis(name) for name in names]
        combined = itertools.product(*(range(len(axis.values)) for axis in axes))
        return [{axis.name: index for axis, index in zip(axes, at, strict=True)} for at in combined]

    def point(self, place: Coordinates) -> Point:
        at = tuple(place[axis.name] for axis in self.axes)
        return next(point for point in self.points if point.at == at)

    def labels(self, place: Coordinates) -> tuple[str, ...]:
        return tuple(value.label for _, value in self._values(place))

    def key(self, place: Coordinates) -> str:
        return " ".join(value.key for _, value in self._values(place))

    def paper_key(self, place: Coordinates) -> str:
        return " ".join(value.paper or value.key for _, value in self._values(place))

    def heading(self, place: Coordinates) -> str:
        return ", ".join(heading(axis.name, axis.title, value.label) for axis, value in self._values(place))

    def _values(self, place: Coordinates) -> list[tuple[Axis, Value]]:
        return [(axis, axis.values[index]) for axis, index in ((self.axis(name), place[name]) for name in place)]


class Plan(FrozenModel):
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


_TITLES: Final = {
    "method": "Method",
    "data.dataset": "Data set",
    "data.alpha": "α",
    "training.local_epochs": "E",
    "training.learning_rate": "learning rate",
    "training.model_group": "models",
    "training.batch_size": "B",
    "method_settings": "Settings",
    "method_settings.l_d_form": "form of L_d",
    "method_settings.l_s_reduction": "L_s over channels",
    "method_settings.k_top": "K_top",
    "method_settings.eta": "η",
    "method_settings.tau": "τ",
}
SPEAKS_FOR_ITSELF: Final = ("method", "data.dataset", "training.model_group", "method_settings")
"""Axes whose values need no name before them."""


def axis_title(name: str) -> str:
    return _TITLES.get(name, name.rpartition(".")[2].replace("_", " "))


def value_label(axis: str, value: Any) -> str:
    if axis == "method":
        name, mark, preset = str(value).partition(PRESET_MARK)
        return f"{METHODS[name].title}{mark}{preset}" if name in METHODS else str(value)
    if axis == "data.dataset" and value in DATASETS:
        return DATASETS[value].title
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={value_label('', setting)}" for name, setting in value.items()) or "defaults"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def heading(axis: str, title: str, label: str) -> str:
    """A value as a column's head, where its axis is not named beside it."""
    return label if axis in SPEAKS_FOR_ITSELF or "." not in axis else f"{title} = {label}"
