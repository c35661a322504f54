"""The tables of accuracies and of differences between rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from feddbp_common.humanize import NO_VALUE
from feddbp_lab.experiments.analysis.comparison import Difference
from feddbp_lab.experiments.analysis.grid import GridColumn, GridRow, ResultGrid
from feddbp_lab.experiments.analysis.outcomes import PointResult, SeedValues
from feddbp_lab.experiments.analysis.paper import PaperValue
from feddbp_lab.experiments.analysis.rounds import Moment
from feddbp_lab.experiments.report.formatted import (
    FormattedTable,
    FormattedValue,
    TableColumn,
    assembled,
    plus_minus,
    signed,
)
from feddbp_lab.results.protocol import Basis

BEST_MARK: Final = "†"
"""After an accuracy of the best round, in a table whose others are of a round chosen on validation samples."""
_ROUND_HEADS: Final = {Basis.VALIDATION: "chosen", Basis.BEST: "best", Basis.LAST: "last"}


def accuracy_table(grid: ResultGrid) -> FormattedTable:
    """The reported accuracy, that of the last round, and the paper's."""
    columns = [column for grid_column in grid.columns for column in _accuracy_columns(grid, grid_column)]
    return assembled(grid.row_heads, (row.labels for row in grid.rows), columns)


def has_last_round(grid: ResultGrid) -> bool:
    """Whether the table has the last round: beside rounds that were chosen on validation samples."""
    return grid.part.report.value == "test" and Basis.VALIDATION in grid.bases


def has_fine_tuning(grid: ResultGrid) -> bool:
    """Whether runs of the table have rounds of fine-tuning."""
    results = (grid.result(row, place) for row in grid.rows for place in grid.places)
    return any(result is not None and result.accuracy(moment=Moment.EXCHANGED) for result in results)


def is_mixed(grid: ResultGrid) -> bool:
    """Whether only some of the runs have validation samples."""
    return len(grid.bases) > 1


def has_paper(grid: ResultGrid) -> bool:
    return any(grid.paper(row, column) for row in grid.rows for column in grid.columns)


def _accuracy_columns(grid: ResultGrid, column: GridColumn) -> Iterator[TableColumn]:
    def beside(head: str, text_of: Callable[[GridRow], str]) -> TableColumn:
        values = [FormattedValue(text=text_of(row), faint=True) for row in grid.rows]
        return TableColumn(group=group, head=head, full_head=head, values=values)

    group = column.group or "Accuracy"
    last, paper = has_last_round(grid), has_paper(grid)
    rounds = "/".join(_ROUND_HEADS[basis] for basis in sorted(grid.bases, reverse=True))
    head = column.head or ((rounds or "ours") if last or paper else "")
    full_head = ", ".join(filter(None, (group, column.head)))
    yield TableColumn(group=group, head=head, full_head=full_head, values=_accuracies(grid, column))
    if last:
        yield beside("last", lambda row: mean_text(grid.result(row, column), column.rule, Moment.LAST))
    if paper:
        yield beside("paper", lambda row: _paper_text(grid.paper(row, column)))


def _accuracies(grid: ResultGrid, column: GridColumn) -> list[FormattedValue]:
    """The highest is underlined, and values printed alike with it; none if some have other seeds than others."""
    values = [grid.values(row, column) for row in grid.rows]
    ranked = [round(found.mean, 2) for found in values if found]
    have_same_seeds = len({frozenset(found.by_seed) for found in values if found}) == 1
    return [
        FormattedValue(
            text=accuracy_text(grid.result(row, column), found, is_marked=is_mixed(grid)),
            underlined=have_same_seeds and found is not None and round(found.mean, 2) == max(ranked),
        )
        for row, found in zip(grid.rows, values, strict=True)
    ]


def difference_table(grid: ResultGrid, moment: Moment = Moment.REPORTED) -> FormattedTable | None:
    """Differences to rows that the part compares with and to the same runs without exchange; None if there are none.

    None also for the last round where it is that of the result, and before fine-tuning where there is none.
    """
    if grid.part.report.value != "test" or not (grid.references or grid.has_controls):
        return None
    if moment is Moment.LAST and not has_last_round(grid):
        return None
    if moment is Moment.EXCHANGED and not has_fine_tuning(grid):
        return None
    columns = []
    for column in grid.columns:
        for reference in grid.references:
            values = [difference_value(grid.difference(row, reference, column, moment)) for row in grid.rows]
            columns.append(_difference_column(column, f"Δ to {reference.title}", values))
        if grid.has_controls:
            values = [difference_value(grid.federation_share(row, column, moment)) for row in grid.rows]
            columns.append(_difference_column(column, "federation's share", values))
    return assembled(grid.row_heads, (row.labels for row in grid.rows), columns).without_empty_rows()


def _difference_column(column: GridColumn, head: str, values: list[FormattedValue]) -> TableColumn:
    return TableColumn(
        group=column.group or "Difference",
        head=f"{column.head}: {head}" if column.head else head,
        full_head=f"{column.title}: {head}" if column.title else head,
        values=values,
    )


def difference_value(difference: Difference | None) -> FormattedValue:
    """Bold if it is beyond chance; with the number of seeds while some of the plan are not done."""
    if difference is None:
        return FormattedValue(text="")
    return FormattedValue(
        text=f"{difference_text(difference)}{_missing_seeds(difference.seeds, difference.planned_seeds)}",
        bold=difference.is_beyond_chance,
    )


def difference_text(difference: Difference) -> str:
    interval = difference.interval
    bounds = f" [{signed(interval.low)}, {signed(interval.high)}]" if interval else ""
    return f"{signed(difference.mean)}{bounds}"


def accuracy_text(result: PointResult | None, values: SeedValues | None, *, is_marked: bool) -> str:
    if result is None:
        return ""
    if values is None:
        return "failed" if result.failed else NO_VALUE
    mark = BEST_MARK if is_marked and Basis.BEST in result.bases else ""
    return f"{plus_minus(values.mean, values.deviation)}{mark}{_missing_seeds(len(values.by_seed), result.seeds)}"


def _missing_seeds(done: int, planned: int) -> str:
    return "" if done == planned else f" ({done} of {planned})"


def mean_text(result: PointResult | None, rule: str | None, moment: Moment) -> str:
    values = None if result is None else result.accuracy(rule, moment)
    return "" if values is None else f"{values.mean:.2f}"


def _paper_text(value: PaperValue | None) -> str:
    return "" if value is None else plus_minus(value.mean, value.deviation)
