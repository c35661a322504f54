"""Tables as text, in a form every output format can write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


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

    def without_empty_rows(self) -> FormattedTable | None:
        """None if no row is left."""
        rows = tuple(row for row in self.rows if any(value.text for value in row.values))
        return replace(self, rows=rows) if rows else None


@dataclass(frozen=True, kw_only=True)
class TableColumn:
    """A column of the body; columns of the same group stand side by side."""

    group: str
    head: str
    """Below the group."""
    full_head: str
    """Where there are no groups."""
    values: Sequence[FormattedValue]
    """One per row."""


def assembled(
    row_heads: tuple[str, ...], labels: Iterable[tuple[str, ...]], columns: Sequence[TableColumn]
) -> FormattedTable:
    """The table of these columns but for empty ones, with a row for each of the labels."""
    columns = [column for column in columns if any(value.text for value in column.values)]
    groups: list[ColumnGroup] = []
    for column in columns:
        if groups and groups[-1].title == column.group:
            groups[-1] = ColumnGroup(title=column.group, width=groups[-1].width + 1)
        else:
            groups.append(ColumnGroup(title=column.group, width=1))
    return FormattedTable(
        row_heads=row_heads,
        groups=tuple(groups),
        column_heads=tuple(column.head for column in columns),
        full_heads=tuple(column.full_head for column in columns),
        rows=tuple(
            FormattedRow(labels=label, values=tuple(column.values[number] for column in columns))
            for number, label in enumerate(labels)
        ),
    )


def assembled_by_place(
    row_heads: tuple[str, ...],
    heads: Sequence[str],
    lines: Sequence[tuple[tuple[str, ...], Sequence[FormattedValue]]],
) -> FormattedTable | None:
    """The table of these lines, each with its labels, the first of which is its place; None without lines.

    A single place without a title has no column.
    """
    if not lines:
        return None
    columns = [
        TableColumn(group=head, head="", full_head=head, values=[values[number] for _, values in lines])
        for number, head in enumerate(heads)
    ]
    labels = [label for label, _ in lines]
    if any(place for place, *_ in labels):
        return assembled(("", *row_heads), labels, columns)
    return assembled(row_heads, [label[1:] for label in labels], columns)


def signed(value: float) -> str:
    # a minus sign has the width of a plus sign, a hyphen has not
    return f"{value:+.2f}".replace("-", "−")


def plus_minus(mean: float, deviation: float | None) -> str:
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"
