"""The tables of clients, one by one, and of what the runs cost."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import Final

from feddbp_common.humanize import NO_VALUE
from feddbp_lab.experiments.analysis.comparison import compare, compare_rare
from feddbp_lab.experiments.analysis.grid import ResultGrid
from feddbp_lab.experiments.analysis.outcomes import PointResult
from feddbp_lab.experiments.report.formatted import (
    FormattedTable,
    FormattedValue,
    TableColumn,
    assembled,
    assembled_by_place,
    signed,
)
from feddbp_lab.experiments.report.tables import difference_value

_CLIENT_HEADS: Final = (
    "mean gain",
    "clients that lose",
    "mean loss",
    "largest loss",
    "accuracy on rare classes",
    "Δ on rare classes",
)


def client_table(grid: ResultGrid) -> FormattedTable | None:
    """Gains and losses of clients against the first row that the part compares with, and rare classes.

    None if there is no such row.
    """
    if grid.part.report.value != "test" or not grid.references:
        return None
    reference = grid.references[0]
    lines: list[tuple[tuple[str, ...], list[FormattedValue]]] = []
    for place in grid.places:
        theirs = grid.result(reference, place)
        for row in grid.rows:
            ours = grid.result(row, place)
            if ours is not None and ours.by_seed:
                lines.append(((place.title, *row.labels), _client_values(ours, None if row == reference else theirs)))
    return assembled_by_place(grid.row_heads, _CLIENT_HEADS, lines)


def _client_values(ours: PointResult, theirs: PointResult | None) -> list[FormattedValue]:
    difference = compare(ours, theirs, None) if theirs else None
    losses = difference.losses if difference else []
    rare = [cell.rare.accuracy for cell in ours.results if cell.rare.accuracy is not None]
    texts = (
        signed(difference.mean_gain) if difference else "",
        f"{len(losses)} of {len(difference.gains)}" if difference else "",
        signed(fmean(losses)) if losses else "",
        signed(losses[0]) if losses else "",
        f"{fmean(rare):.2f}" if rare else NO_VALUE,
    )
    return [
        *(FormattedValue(text=text) for text in texts),
        difference_value(compare_rare(ours, theirs) if theirs else None),
    ]


def cost_table(grid: ResultGrid) -> FormattedTable | None:
    """Core-minutes of all seeds together, and traffic; None if no cell has recorded its time."""
    minutes = [[_core_minutes(grid.result(row, place)) for row in grid.rows] for place in grid.places]
    if not any(value is not None for values in minutes for value in values):
        return None
    columns: list[TableColumn] = []
    for place, values in zip(grid.places, minutes, strict=True):
        traffic = [_megabytes(grid.result(row, place)) for row in grid.rows]
        columns.append(_cost_column(place.title, "core-min", [*values, _sum(values)]))
        columns.append(_cost_column(place.title, "MB", [*traffic, None], digits=2))
        weights = [_weights(grid.result(row, place)) for row in grid.rows]
        columns.append(_cost_column(place.title, "M weights", [*weights, None], digits=2))
    if len(grid.places) > 1:
        by_row = [_sum(values) for values in zip(*minutes, strict=True)]
        columns.append(_cost_column("together", "core-min", [*by_row, _sum(by_row)]))
    total = ("all", *[""] * (len(grid.row_heads) - 1))
    return assembled(grid.row_heads, [*(row.labels for row in grid.rows), total], columns).without_empty_rows()


def _cost_column(group: str, head: str, values: list[float | None], *, digits: int = 1) -> TableColumn:
    texts = ["" if value is None else f"{value:,.{digits}f}" for value in values]
    return TableColumn(
        group=group or "Cost",
        head=head,
        full_head=", ".join(filter(None, (group, head))),
        values=[FormattedValue(text=text) for text in texts],
    )


def _core_minutes(result: PointResult | None) -> float | None:
    return None if result is None else result.total(lambda cell: cell.core_minutes)


def _megabytes(result: PointResult | None) -> float | None:
    """None also without exchange: what such a client sends comes back to it alone, and could stay where it is."""
    if result is None or any(cell.options.get("exchange") == "off" for cell in result.results):
        return None
    return result.mean(lambda cell: cell.megabytes)


def _weights(result: PointResult | None) -> float | None:
    return None if result is None else result.mean(lambda cell: cell.parameters)


def _sum(values: Iterable[float | None]) -> float | None:
    """Of the known ones."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
