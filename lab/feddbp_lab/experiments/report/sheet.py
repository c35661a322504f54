"""A table as text with emphasis, ready for any markup."""

from __future__ import annotations

from dataclasses import dataclass

from feddbp_lab.experiments.report.paper import PaperValue
from feddbp_lab.experiments.report.tables import Entry, ResultTable, Row
from feddbp_lab.terminal.format import NOTHING


@dataclass(frozen=True, kw_only=True)
class Word:
    text: str
    bold: bool = False
    underlined: bool = False
    faint: bool = False


@dataclass(frozen=True, kw_only=True)
class Head:
    text: str
    width: int
    """Columns of the body below it."""


@dataclass(frozen=True, kw_only=True)
class Sheet:
    row_heads: tuple[str, ...]
    groups: tuple[Head, ...]
    heads: tuple[str, ...]
    """Of single columns below their group; all empty where every group has only one."""
    full_heads: tuple[str, ...]
    """The same where there is no group above them."""
    rows: tuple[tuple[tuple[str, ...], tuple[Word, ...]], ...]
    """Labels, and what follows them."""


def sheet_of(table: ResultTable) -> Sheet:
    beside = [*(["Δ"] if table.compared_with else []), *(["paper"] if table.has_paper else [])]
    groups: list[Head] = []
    heads: list[str] = []
    full_heads: list[str] = []
    for column in table.columns:
        if groups and groups[-1].text == column.group:
            groups[-1] = Head(text=column.group, width=groups[-1].width + 1 + len(beside))
        else:
            groups.append(Head(text=column.group, width=1 + len(beside)))
        heads.extend([column.head or ("ours" if beside else ""), *beside])
        full_heads.extend([", ".join(filter(None, (column.group, column.head))), *beside])
    return Sheet(
        row_heads=table.row_heads,
        groups=tuple(groups),
        heads=tuple(heads),
        full_heads=tuple(full_heads),
        rows=tuple((row.labels, tuple(_words(row, table))) for row in table.rows),
    )


def _words(row: Row, table: ResultTable) -> list[Word]:
    words = []
    for entry in row.entries:
        words.append(Word(text=accuracy_text(entry), bold=entry.rank == 1, underlined=entry.rank == 2))
        if table.compared_with:
            words.append(Word(text=_difference_text(entry.difference), faint=True))
        if table.has_paper:
            words.append(Word(text=_paper_text(entry.paper), faint=True))
    return words


def accuracy_text(entry: Entry) -> str:
    measured, best = entry.measured, entry.best
    if best is None:
        return "failed" if measured.failed else NOTHING
    text = _plus_minus(best.mean, best.deviation)
    there = len(best.of_seed)
    return text if there == measured.seeds else f"{text} ({there} of {measured.seeds})"


def _difference_text(difference: float | None) -> str:
    # a minus is as wide as a plus, a hyphen is not
    return "" if difference is None else f"{difference:+.2f}".replace("-", "−")


def _paper_text(value: PaperValue | None) -> str:
    return "" if value is None else _plus_minus(value.mean, value.deviation)


def _plus_minus(mean: float, deviation: float | None) -> str:
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"
