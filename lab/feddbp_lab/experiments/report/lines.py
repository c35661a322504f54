"""The lines of a figure, from the cells of a part: accuracy over rounds, or along the axis of a sweep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from feddbp_lab.experiments.plan import Part, Place
from feddbp_lab.experiments.report.outcomes import Outcomes

_LOG_FROM: Final = 5.0
"""A sweep over more than such a factor is drawn on a logarithmic axis."""
_DOTTED_LINES: Final = 4
_DOTTED_ROUNDS: Final = 25
"""No more lines and rounds than these have every point marked."""


@dataclass(frozen=True, kw_only=True)
class Line:
    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    deviations: tuple[float | None, ...] = ()
    highlighted: bool = False
    marked: bool = False
    """Every point has a dot."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    title: str
    x_title: str
    lines: tuple[Line, ...]
    ticks: tuple[tuple[float, str], ...] = ()
    """Where the axis of a sweep has values, and how they are called; rounds need no such help."""
    log: bool = False


def panels_of(part: Part, outcomes: Outcomes) -> list[Panel]:
    draw = _sweep if part.report.kind == "sweep" else _curves
    return [draw(part, outcomes, place) for place in part.places(part.report.columns)]


def _curves(part: Part, outcomes: Outcomes, column: Place) -> Panel:
    lines, rows = [], part.places(part.report.rows)
    for row in rows:
        curve = outcomes.at(part.point({**row, **column})).mean_curve()
        # a run too short for that is shown from its first training on
        first = part.report.from_round if max(curve, default=0) > part.report.from_round else 1
        shown = {number: accuracy for number, accuracy in curve.items() if number >= first}
        lines.append(
            Line(
                name=" ".join(part.labels(row)),
                x=tuple(shown),
                y=tuple(shown.values()),
                highlighted=part.key(row) == part.report.highlight,
                marked=len(rows) <= _DOTTED_LINES and len(shown) <= _DOTTED_ROUNDS,
            )
        )
    return Panel(title=part.heading(column), x_title="completed rounds", lines=tuple(lines))


def _sweep(part: Part, outcomes: Outcomes, column: Place) -> Panel:
    assert part.report.x is not None
    axis = part.axis(part.report.x)
    ticks = _ticks([value.label for value in axis.values])
    lines = []
    for row in part.places(part.report.rows):
        found = [outcomes.at(part.point({**row, **column, axis.name: index})).best() for index in range(len(ticks))]
        there = [(tick, spread) for (tick, _), spread in zip(ticks, found, strict=True) if spread is not None]
        lines.append(
            Line(
                name=" ".join(part.labels(row)),
                x=tuple(tick for tick, _ in there),
                y=tuple(spread.mean for _, spread in there),
                deviations=tuple(spread.deviation for _, spread in there),
                highlighted=part.key(row) == part.report.highlight,
                marked=True,
            )
        )
    positions = [tick for tick, _ in ticks]
    log = min(positions) > 0 and max(positions) / min(positions) > _LOG_FROM
    return Panel(title=part.heading(column), x_title=axis.title, lines=tuple(lines), ticks=tuple(ticks), log=log)


def _ticks(labels: list[str]) -> list[tuple[float, str]]:
    """At their values if they are numbers, else side by side."""
    try:
        return [(float(label), label) for label in labels]
    except ValueError:
        return [(float(index), label) for index, label in enumerate(labels)]
