"""Figures of a part for print: accuracy over rounds or along an axis, with the name of each line at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from feddbp_lab.experiments.analysis.outcomes import Outcomes
from feddbp_lab.experiments.plan import Coordinates, Part
from feddbp_lab.results.curves import COLOURS, DASHES, INK, PRINT_STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LOG_FROM: Final = 5.0
"""A sweep over more than this factor is drawn on a logarithmic axis."""
_MARKED_LINES: Final = 4
_MARKED_ROUNDS: Final = 25
"""With more lines or rounds, the points are not marked."""
_AXES_INCHES: Final = (3.0, 2.3)
_LEFT, _BOTTOM, _TOP = 0.5, 0.42, 0.28
"""Inches around the axes of a panel; the right side depends on the names of the lines."""
_LEAST_RIGHT: Final = 0.95
_NAME_POINTS: Final = 7.0
_NAME_WIDTH: Final = 0.62 * _NAME_POINTS / 72
"""Approximate width of a bold character in inches."""


@dataclass(frozen=True, kw_only=True)
class Line:
    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    deviations: tuple[float | None, ...] = ()
    bands: tuple[tuple[float, float], ...] = ()
    """The confidence interval at every point, drawn as a band."""
    highlighted: bool = False
    marked: bool = False
    """Whether every point has a dot."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    title: str
    x_title: str
    lines: tuple[Line, ...]
    ticks: tuple[tuple[float, str], ...] = ()
    """Position and label of the values of a sweep; empty for rounds, whose ticks matplotlib places."""
    log: bool = False


def panels_of(part: Part, outcomes: Outcomes) -> list[Panel]:
    make_panel = _sweep if part.report.kind == "sweep" else _curves
    return [make_panel(part, outcomes, column) for column in part.combinations(part.report.columns)]


def _curves(part: Part, outcomes: Outcomes, column: Coordinates) -> Panel:
    lines, rows = [], part.combinations(part.report.rows)
    for row in rows:
        point = outcomes.at(part.point({**row, **column}))
        curve, bands = point.mean_curve(), point.curve_bands()
        # a shorter run is shown from its first training on
        first = part.report.from_round if max(curve, default=0) > part.report.from_round else 1
        shown = {number: accuracy for number, accuracy in curve.items() if number >= first}
        lines.append(
            Line(
                name=" ".join(part.labels(row)),
                x=tuple(shown),
                y=tuple(shown.values()),
                bands=tuple(bands[number] for number in shown) if bands else (),
                highlighted=part.key(row) == part.report.highlight,
                marked=len(rows) <= _MARKED_LINES and len(shown) <= _MARKED_ROUNDS,
            )
        )
    return Panel(title=part.heading(column), x_title="completed rounds", lines=tuple(lines))


def _sweep(part: Part, outcomes: Outcomes, column: Coordinates) -> Panel:
    assert part.report.x is not None
    axis = part.axis(part.report.x)
    ticks = _ticks([value.label for value in axis.values])
    lines = []
    for row in part.combinations(part.report.rows):
        found = [outcomes.at(part.point({**row, **column, axis.name: index})).accuracy() for index in range(len(ticks))]
        points = [(tick, values) for (tick, _), values in zip(ticks, found, strict=True) if values is not None]
        lines.append(
            Line(
                name=" ".join(part.labels(row)),
                x=tuple(tick for tick, _ in points),
                y=tuple(values.mean for _, values in points),
                deviations=tuple(values.deviation for _, values in points),
                highlighted=part.key(row) == part.report.highlight,
                marked=True,
            )
        )
    positions = [tick for tick, _ in ticks]
    log = min(positions) > 0 and max(positions) / min(positions) > _LOG_FROM
    return Panel(title=part.heading(column), x_title=axis.title, lines=tuple(lines), ticks=tuple(ticks), log=log)


def _ticks(labels: list[str]) -> list[tuple[float, str]]:
    """At their values if they are all numbers, else equally spaced."""
    try:
        return [(float(label), label) for label in labels]
    except ValueError:
        return [(float(index), label) for index, label in enumerate(labels)]


def draw_panels(panels: Sequence[Panel], stem: Path) -> tuple[Path, Path]:
    """Writes the figure as PNG and SVG."""
    # takes a second to import, and a report without figures does not need it
    import matplotlib as mpl
    from matplotlib.figure import Figure

    wide, high = _AXES_INCHES
    longest = max((len(line.name) for panel in panels for line in panel.lines), default=0)
    right = max(_LEAST_RIGHT, 0.05 * wide + _NAME_WIDTH * longest)
    panel_width, height = _LEFT + wide + right, _BOTTOM + high + _TOP
    width = panel_width * len(panels)
    with mpl.rc_context(PRINT_STYLE):
        figure = Figure(figsize=(width, height))
        for number, panel in enumerate(panels):
            left = (number * panel_width + _LEFT) / width
            axes = figure.add_axes((left, _BOTTOM / height, wide / width, high / height))
            _draw(axes, panel)
            _name_lines(axes, panel)
        figure.savefig(stem.with_suffix(".png"), dpi=300)
        # no background, which the page has, and no date: the same results give the same file
        figure.savefig(stem.with_suffix(".svg"), transparent=True, metadata={"Date": None})
    return stem.with_suffix(".png"), stem.with_suffix(".svg")


def _draw(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator, NullLocator

    for line, style in zip(panel.lines, _line_styles(panel.lines), strict=True):
        if line.bands:
            low, high = zip(*line.bands, strict=True)
            axes.fill_between(line.x, low, high, color=style["color"], alpha=0.12, linewidth=0)
        if any(line.deviations):
            bars = [deviation or 0.0 for deviation in line.deviations]
            axes.errorbar(line.x, line.y, yerr=bars, elinewidth=0.7, **style)
        else:
            axes.plot(line.x, line.y, **style)
    # a small margin: the name of a line begins where the line ends
    axes.margins(x=0.015)
    axes.set(title=panel.title, xlabel=panel.x_title, ylabel="accuracy (%)")
    if panel.ticks:
        positions, names = zip(*panel.ticks, strict=True)
        axes.set_xscale("log" if panel.log else "linear")
        axes.set_xticks(positions, names)
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def _line_styles(lines: Sequence[Line]) -> list[dict[str, Any]]:
    styles = []
    plain = 0
    for line in lines:
        marker = {"marker": "o", "markersize": 3.0} if line.marked else {}
        if line.highlighted:
            styles.append({"color": INK, "linewidth": 2.2, "zorder": 5, **marker})
            continue
        dash = DASHES[plain // len(COLOURS) % len(DASHES)]
        styles.append({"color": COLOURS[plain % len(COLOURS)], "linestyle": dash, "linewidth": 1.2, **marker})
        plain += 1
    return styles


def _name_lines(axes: Axes, panel: Panel) -> None:
    """Writes the names at the right edge, as close to the ends of their lines as they fit without overlap."""
    named = [(line, style) for line, style in zip(panel.lines, _line_styles(panel.lines), strict=True) if line.y]
    bottom, top = axes.get_ylim()
    ends = [(line.y[-1] - bottom) / (top - bottom) for line, _ in named]
    gap = 1.25 * _NAME_POINTS / 72 / _AXES_INCHES[1]
    heights = spread_out(ends, gap=min(gap, 1.0 / max(1, len(named) - 1)), least=0.0, most=1.0)
    for (line, style), end, height in zip(named, ends, heights, strict=True):
        axes.annotate(
            line.name,
            xy=(1.005, end),
            xytext=(1.05, height),
            xycoords="axes fraction",
            textcoords="axes fraction",
            va="center",
            fontsize=_NAME_POINTS,
            fontweight="bold" if line.highlighted else "normal",
            color=style["color"],
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "relpos": (0.0, 0.5),
                "linewidth": 0.6,
                "color": style["color"],
                "shrinkA": 1,
                "shrinkB": 0,
            },
        )


def spread_out(heights: Sequence[float], *, gap: float, least: float, most: float) -> list[float]:
    """Moves heights apart, as little as possible, so that they differ by the gap and stay within bounds, in order."""

    def bottom(block: list[int]) -> float:
        extent = gap * (len(block) - 1)
        middle = sum(heights[index] for index in block) / len(block)
        return max(least, min(middle - extent / 2, most - extent))

    blocks: list[list[int]] = []
    for index in sorted(range(len(heights)), key=lambda index: heights[index]):
        blocks.append([index])
        # overlapping blocks are merged into one around the mean of their members' heights
        while len(blocks) > 1 and bottom(blocks[-2]) + gap * len(blocks[-2]) > bottom(blocks[-1]):
            blocks[-2:] = [[*blocks[-2], *blocks[-1]]]
    placed = [0.0] * len(heights)
    for block in blocks:
        for number, index in enumerate(block):
            placed[index] = bottom(block) + number * gap
    return placed
