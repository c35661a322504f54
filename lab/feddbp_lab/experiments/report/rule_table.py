"""The table of inference rules: what each part of a method, such as its head or a second network, decides alone."""

from __future__ import annotations

from typing import Final

from feddbp_lab.experiments.analysis.grid import GridColumn, GridRow, ResultGrid
from feddbp_lab.experiments.analysis.outcomes import PointResult
from feddbp_lab.experiments.analysis.rounds import Moment
from feddbp_lab.experiments.report.formatted import FormattedTable, FormattedValue, assembled_by_place
from feddbp_lab.experiments.report.tables import accuracy_text, difference_value, has_fine_tuning, mean_text

OWN_MARK: Final = "•"
"""Before the rule by which a method decides, and is compared in all other tables."""


def rule_table(grid: ResultGrid) -> FormattedTable | None:
    """Every recorded rule of every row, against the own rule of the first row that the part compares with.

    None if there is no such row, if no method has a second rule, or if rules are columns of the other tables.
    """
    report = grid.part.report
    if report.value != "test" or report.rules or not grid.references:
        return None
    lines: list[tuple[tuple[str, ...], list[FormattedValue]]] = []
    for place in grid.places:
        for row in grid.rows:
            result = grid.result(row, place)
            if result is None or len(result.rules()) < 2:
                continue
            for rule in result.rules():
                is_own = any(cell.inference == rule for cell in result.results)
                name = rule.replace("_", " ")
                labels = (place.title, *row.labels, f"{OWN_MARK} {name}" if is_own else name)
                lines.append((labels, _values(grid, row, grid.with_rule(place, rule), result)))
    heads = [
        "accuracy",
        *_other_moments(grid),
        f"Δ to {grid.references[0].title}",
        *(["federation's share"] * grid.has_controls),
    ]
    return assembled_by_place((*grid.row_heads, "rule"), heads, lines)


def _values(grid: ResultGrid, row: GridRow, column: GridColumn, result: PointResult) -> list[FormattedValue]:
    values = [
        FormattedValue(text=accuracy_text(result, result.accuracy(column.rule), is_marked=False)),
        *(FormattedValue(text=mean_text(result, column.rule, moment), faint=True) for moment in _other_moments(grid)),
        difference_value(grid.difference(row, grid.references[0], column)),
    ]
    return [*values, difference_value(grid.federation_share(row, column))] if grid.has_controls else values


def _other_moments(grid: ResultGrid) -> list[Moment]:
    return [Moment.EXCHANGED, Moment.LAST] if has_fine_tuning(grid) else [Moment.LAST]
