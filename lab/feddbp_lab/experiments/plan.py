"""The plan of an experiment: every cell it consists of, and the position of each in the report."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from pydantic import Field, model_validator

from feddbp_common.config.catalog import DATASETS
from feddbp_common.config.types import FrozenModel
from feddbp_common.methods import METHODS, PRESET_MARK
from feddbp_lab.experiments.spec import ReportSpec

PLAN_VERSION: Final = 2
Coordinates = Mapping[str, int]
"""A position on some axes: by the name of an axis, the index of a value."""
_TITLES: Final = {
    "method": "Method",
    "data.dataset": "Data set",
    "data.alpha": "α",
    "training.local_epochs": "E",
    "training.learning_rate": "learning rate",
    "training.weight_decay": "weight decay",
    "training.model_group": "models",
    "training.batch_size": "B",
    "newcomer_samples": "newcomer's images",
    "method_settings": "Settings",
    "method_settings.l_d_form": "form of L_d",
    "method_settings.l_s_reduction": "L_s over channels",
    "method_settings.k_top": "K_top",
    "method_settings.eta": "η",
    "method_settings.tau": "τ",
}
_UNTITLED_AXES: Final = ("method", "data.dataset", "training.model_group", "method_settings")
"""Axes whose values are understood without the axis's title."""


class AxisValue(FrozenModel):
    key: str
    """The name `compare` and `highlight` of a report refer to."""
    label: str
    paper: str = ""
    """The value in the paper's table it corresponds to, if that differs from the key."""


class Axis(FrozenModel):
    """An option whose values differ between runs, or a named set of options that change together."""

    name: str
    title: str
    values: tuple[AxisValue, ...]


class Point(FrozenModel):
    """A point of a grid: the index of its value on every axis, and the ids of its cells by seed."""

    at: tuple[int, ...]
    cells: dict[int, str]
    without_exchange: dict[int, str] = Field({})
    """The cells of its control: the same runs with the exchange off. Empty if it has none."""

    @property
    def runs(self) -> list[dict[int, str]]:
        """Of each run at the point, which differ in the exchange, the ids of its cells by seed."""
        return [cells for cells in (self.cells, self.without_exchange) if cells]

    def cells_of(self, seed: int) -> list[str]:
        return [cells[seed] for cells in self.runs]

    def with_cells_of(self, other: Point, seeds: Collection[int]) -> Point:
        """Adds the cells that another point has for these seeds."""
        return Point(
            at=self.at,
            cells=_with_seeds(self.cells, other.cells, seeds),
            without_exchange=_with_seeds(self.without_exchange, other.without_exchange, seeds),
        )


class PartShape(NamedTuple):
    """Equal for parts whose points can be matched by their position; their options may differ."""

    axes: tuple[tuple[str, tuple[str, ...]], ...]
    """The name of each, and the keys of its values."""
    points: tuple[tuple[tuple[int, ...], bool], ...]
    """The position of each, and whether it has a control."""


class Part(FrozenModel):
    """A grid, with a point for every combination of its axes' values, and how it is reported."""

    title: str
    axes: tuple[Axis, ...]
    report: ReportSpec
    points: tuple[Point, ...]

    @property
    def shape(self) -> PartShape:
        return PartShape(
            axes=tuple((axis.name, tuple(value.key for value in axis.values)) for axis in self.axes),
            points=tuple((point.at, bool(point.without_exchange)) for point in self.points),
        )

    def with_cells_of(self, other: Part, seeds: Collection[int]) -> Part:
        """Adds the cells that a part of the same shape has for these seeds."""
        pairs = zip(self.points, other.points, strict=True)
        return self.model_copy(update={"points": tuple(point.with_cells_of(more, seeds) for point, more in pairs)})

    def axis(self, name: str) -> Axis:
        return next(axis for axis in self.axes if axis.name == name)

    def combinations(self, names: Iterable[str]) -> list[Coordinates]:
        """All combinations of the values of these axes, the last axis changing fastest."""
        axes = [self.axis(name) for name in names]
        combined = itertools.product(*(range(len(axis.values)) for axis in axes))
        return [{axis.name: index for axis, index in zip(axes, at, strict=True)} for at in combined]

    def point(self, coordinates: Coordinates) -> Point:
        at = tuple(coordinates[axis.name] for axis in self.axes)
        return next(point for point in self.points if point.at == at)

    def points_at(self, coordinates: Coordinates) -> list[Point]:
        """The points at a position on some of the axes."""
        places = {place: coordinates[axis.name] for place, axis in enumerate(self.axes) if axis.name in coordinates}
        return [point for point in self.points if all(point.at[place] == at for place, at in places.items())]

    def labels(self, coordinates: Coordinates) -> tuple[str, ...]:
        return tuple(value.label for _, value in self._values(coordinates))

    def key(self, coordinates: Coordinates) -> str:
        return " ".join(value.key for _, value in self._values(coordinates))

    def paper_key(self, coordinates: Coordinates) -> str:
        return " ".join(value.paper or value.key for _, value in self._values(coordinates))

    def heading(self, coordinates: Coordinates) -> str:
        """The head of a column or panel, where the axes are not named beside it."""
        return ", ".join(_heading(axis, value) for axis, value in self._values(coordinates))

    def _values(self, coordinates: Coordinates) -> list[tuple[Axis, AxisValue]]:
        axes = [self.axis(name) for name in coordinates]
        return [(axis, axis.values[coordinates[axis.name]]) for axis in axes]


class Plan(FrozenModel):
    """An experiment with all its cells; stored, so that a report does not depend on defaults that change later."""

    name: str
    title: str
    note: str
    profile: str | None
    overrides: dict[str, Any]
    seeds: tuple[int, ...]
    parts: tuple[Part, ...]
    version: int = 1

    @model_validator(mode="before")
    @classmethod
    def _current_names(cls, values: Any) -> Any:
        """Version 1 called the profile `quick` that is now `short`."""
        is_first = isinstance(values, dict) and values.get("version", 1) == 1
        return {**values, "profile": "short"} if is_first and values.get("profile") == "quick" else values

    @property
    def cell_ids(self) -> list[str]:
        """Every cell once, all of the first seed first, so that a complete table is available early."""
        return list(dict.fromkeys(cell_id for seed in self.seeds for cell_id in self.cell_ids_of(seed)))

    def is_extended_by(self, other: Plan) -> bool:
        """Whether another plan has the same points, and the same cells for seeds that both have.

        Not whether the cells of other seeds have the same options: their ids do not tell (`matching_cells`).
        """
        common = {*self.seeds} & {*other.seeds}
        return [part.shape for part in self.parts] == [part.shape for part in other.parts] and all(
            self.cell_ids_of(seed) == other.cell_ids_of(seed) for seed in common
        )

    def matching_cells(self, other: Plan) -> Iterator[tuple[list[str], list[str]]]:
        """The cells of every run, in this plan and in one that extends it: they should differ in the seed alone."""
        for part, more in zip(self.parts, other.parts, strict=True):
            for point, matching in zip(part.points, more.points, strict=True):
                for ours, theirs in zip(point.runs, matching.runs, strict=True):
                    yield [*ours.values()], [*theirs.values()]

    def with_seeds_of(self, other: Plan, seeds: Iterable[int]) -> Plan:
        """Adds the cells that a plan which extends this one has for these seeds."""
        added = [seed for seed in seeds if seed not in self.seeds]
        parts = tuple(part.with_cells_of(more, added) for part, more in zip(self.parts, other.parts, strict=True))
        return self.model_copy(update={"seeds": tuple(sorted({*self.seeds, *added})), "parts": parts})

    def cell_ids_of(self, seed: int) -> list[str]:
        return [cell_id for part in self.parts for point in part.points for cell_id in point.cells_of(seed)]


def _with_seeds(cells: Mapping[int, str], more: Mapping[int, str], seeds: Iterable[int]) -> dict[int, str]:
    if not cells:
        return {}
    return dict(sorted({**cells, **{seed: more[seed] for seed in seeds}}.items()))


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


def _heading(axis: Axis, value: AxisValue) -> str:
    is_clear = axis.name in _UNTITLED_AXES or ("." not in axis.name and axis.name not in _TITLES)
    return value.label if is_clear else f"{axis.title} = {value.label}"
