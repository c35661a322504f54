"""The table of a part: accuracies with ranks, differences and the paper's values, and their text form."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from feddbp_lab.experiments.plan import Coordinates, Part
from feddbp_lab.experiments.report.outcomes import Outcomes, PointResult, SeedValues
from feddbp_lab.experiments.report.paper import PaperValue, paper_value
from feddbp_lab.terminal.format import NO_VALUE

_RANKS: Final = 2
"""How many of the best values of a column are marked."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One value of a table."""

    result: PointResult
    best: SeedValues | None
    paper: PaperValue | None
    difference: float | None = None
    rank: int | None = None
    """1 for the best of its column, 2 for the second; None for the others."""


@dataclass(frozen=True, kw_only=True)
class Row:
    key: str
    labels: tuple[str, ...]
    entries: tuple[Entry, ...]


@dataclass(frozen=True, kw_only=True)
class Column:
    group: str
    head: str
    """Within its group; empty if the group has one column only."""


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    title: str
    row_heads: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    compared_with: str | None

    @property
    def has_paper(self) -> bool:
        return any(entry.paper for row in self.rows for entry in row.entries)


def table_of(part: Part, outcomes: Outcomes) -> ResultTable:
    report = part.report
    groups, sweep = part.combinations(report.columns), part.combinations([report.x] if report.x else [])
    rules = _rules(part, outcomes) if report.rules else [None]
    columns = list(itertools.product(groups, sweep, rules))
    rows = [
        Row(
            key=part.key(row),
            labels=part.labels(row),
            entries=tuple(_entry(part, outcomes, row, {**group, **x}, rule) for group, x, rule in columns),
        )
        for row in part.combinations(report.rows)
    ]
    return ResultTable(
        title=part.title,
        row_heads=tuple(part.axis(name).title for name in report.rows),
        columns=tuple(
            Column(group=part.heading(group) or "Accuracy", head=_head(part.heading(x), rule))
            for group, x, rule in columns
        ),
        rows=_ranked(_compared(rows, report.compare)),
        compared_with=next(
            (part.heading(row) for row in part.combinations(report.rows) if part.key(row) == report.compare), None
        ),
    )


def _head(value: str, rule: str | None) -> str:
    return ", ".join(filter(None, (value, (rule or "").replace("_", " "))))


def _entry(part: Part, outcomes: Outcomes, row: Coordinates, column: Coordinates, rule: str | None) -> Entry:
    result = outcomes.at(part.point({**row, **column}))
    paper = paper_value(part.report.paper, part.paper_key(row), part.paper_key(column))
    return Entry(result=result, best=result.best(rule), paper=paper)


def _rules(part: Part, outcomes: Outcomes) -> list[str | None]:
    """Every inference rule recorded in the part; before there are results, the method's own (None)."""
    found = itertools.chain.from_iterable(outcomes.at(point).rules() for point in part.points)
    return list(dict.fromkeys(found)) or [None]


def _compared(rows: Iterable[Row], key: str | None) -> list[Row]:
    listed = list(rows)
    reference = next((row for row in listed if row.key == key), None)
    if reference is None:
        return listed
    return [row if row is reference else _compared_row(row, reference) for row in listed]


def _compared_row(row: Row, reference: Row) -> Row:
    entries = tuple(
        replace(entry, difference=entry.best.difference_to(other.best)) if entry.best and other.best else entry
        for entry, other in zip(row.entries, reference.entries, strict=True)
    )
    return replace(row, entries=entries)


def _ranked(rows: list[Row]) -> tuple[Row, ...]:
    columns = [_ranked_column(column) for column in zip(*(row.entries for row in rows), strict=True)]
    return tuple(replace(row, entries=entries) for row, entries in zip(rows, zip(*columns, strict=True), strict=True))


def _ranked_column(entries: Iterable[Entry]) -> list[Entry]:
    """Ranks the best and the second among the entries with the most seeds; values printed alike share a rank."""
    listed = list(entries)
    most = max((len(entry.best.by_seed) for entry in listed if entry.best), default=0)
    ranked = {
        number: entry.best for number, entry in enumerate(listed) if entry.best and len(entry.best.by_seed) == most
    }
    means = sorted({_rounded_mean(best) for best in ranked.values()}, reverse=True)[:_RANKS]
    rank = {mean: number for number, mean in enumerate(means, start=1)}
    return [
        replace(entry, rank=rank.get(_rounded_mean(ranked[number]))) if number in ranked else entry
        for number, entry in enumerate(listed)
    ]


def _rounded_mean(values: SeedValues) -> float:
    return round(values.mean, 2)


@dataclass(frozen=True, kw_only=True)
class FormattedValue:
    text: str
    bold: bool = False
    underlined: bool = False
    faint: bool = False


@dataclass(frozen=True, kw_only=True)
class FormattedRow:
    labels: tuple[str, ...]
    values: tuple[FormattedValue, ...]


@dataclass(frozen=True, kw_only=True)
class ColumnGroup:
    title: str
    width: int
    """In columns of the body."""


@dataclass(frozen=True, kw_only=True)
class FormattedTable:
    """A table as text, in a form every output format can write."""

    row_heads: tuple[str, ...]
    """Heads of the columns that hold the rows' labels."""
    groups: tuple[ColumnGroup, ...]
    column_heads: tuple[str, ...]
    """Heads of single columns below their group; all empty where every group has one column only."""
    full_heads: tuple[str, ...]
    """Heads for a format without groups: the group's title and the column's own."""
    rows: tuple[FormattedRow, ...]

    @property
    def has_column_heads(self) -> bool:
        return any(self.column_heads)


def format_table(table: ResultTable) -> FormattedTable:
    beside = [*(["Δ"] if table.compared_with else []), *(["paper"] if table.has_paper else [])]
    groups: list[ColumnGroup] = []
    column_heads: list[str] = []
    full_heads: list[str] = []
    for column in table.columns:
        if groups and groups[-1].title == column.group:
            groups[-1] = ColumnGroup(title=column.group, width=groups[-1].width + 1 + len(beside))
        else:
            groups.append(ColumnGroup(title=column.group, width=1 + len(beside)))
        column_heads.extend([column.head or ("ours" if beside else ""), *beside])
        full_heads.extend([", ".join(filter(None, (column.group, column.head))), *beside])
    return FormattedTable(
        row_heads=table.row_heads,
        groups=tuple(groups),
        column_heads=tuple(column_heads),
        full_heads=tuple(full_heads),
        rows=tuple(FormattedRow(labels=row.labels, values=tuple(_values(row, table))) for row in table.rows),
    )


def _values(row: Row, table: ResultTable) -> Iterator[FormattedValue]:
    for entry in row.entries:
        yield FormattedValue(text=_accuracy_text(entry), bold=entry.rank == 1, underlined=entry.rank == 2)
        if table.compared_with:
            yield FormattedValue(text=_difference_text(entry.difference), faint=True)
        if table.has_paper:
            yield FormattedValue(text=_paper_text(entry.paper), faint=True)


def _accuracy_text(entry: Entry) -> str:
    result, best = entry.result, entry.best
    if best is None:
        return "failed" if result.failed else NO_VALUE
    text = _plus_minus(best.mean, best.deviation)
    done = len(best.by_seed)
    return text if done == result.seeds else f"{text} ({done} of {result.seeds})"


def _difference_text(difference: float | None) -> str:
    # a minus sign has the width of a plus sign, a hyphen has not
    return "" if difference is None else f"{difference:+.2f}".replace("-", "−")


def _paper_text(value: PaperValue | None) -> str:
    return "" if value is None else _plus_minus(value.mean, value.deviation)


def _plus_minus(mean: float, deviation: float | None) -> str:
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"
