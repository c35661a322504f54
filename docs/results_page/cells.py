"""Cells of the tables, and tables of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from feddbp_lab.experiments.analysis.comparison import Difference
from feddbp_lab.experiments.analysis.outcomes import PointResult
from feddbp_lab.experiments.analysis.rounds import Moment
from feddbp_lab.experiments.report.formatted import FormattedRow, FormattedTable, FormattedValue, plus_minus
from feddbp_lab.experiments.report.tables import difference_text
from results_page.kept import SETS, Kept

Value = FormattedValue | str
MOMENTS: Final = (Moment.REPORTED, Moment.EXCHANGED, Moment.LAST)


def by_set(
    methods: Iterable[str], value_of: Callable[[str, str], Value], sets: Sequence[str] = tuple(SETS)
) -> FormattedTable:
    return table(
        ["Method", *map(SETS.__getitem__, sets)],
        [[method, *(value_of(method, name) for name in sets)] for method in methods],
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[Value]], *, labels: int = 1) -> FormattedTable:
    """The first columns are labels."""
    made = [[FormattedValue(text=value) if isinstance(value, str) else value for value in row] for row in rows]
    return FormattedTable(
        row_heads=tuple(heads[:labels]),
        groups=(),
        column_heads=tuple(heads[labels:]),
        full_heads=tuple(heads[labels:]),
        rows=tuple(
            FormattedRow(labels=tuple(value.text for value in row[:labels]), values=tuple(row[labels:])) for row in made
        ),
    )


def heads_of(reference: str) -> list[str]:
    """Of the differences at every moment."""
    return [f"Δ to {reference}", "Δ before fine-tuning", "Δ in the last round"]


def marked(difference: Difference | None) -> FormattedValue:
    """With the number of common seeds, where these are not three."""
    if difference is None:
        return FormattedValue(text="")
    return FormattedValue(
        text=f"{difference_text(difference)}{seeds_of(difference.seeds)}", bold=difference.is_beyond_chance
    )


def name_of(rule: str) -> str:
    return rule.replace("_", " ")


def title_by_rule(row: str, rule: str | None) -> str:
    return f"{row} by its {name_of(rule)}" if rule else row


def seeds_of(count: int) -> str:
    return {1: "¹", 2: "²"}.get(count, "")


def with_seed(result: PointResult | None, seed: int) -> PointResult | None:
    if result is None or seed not in result.by_seed:
        return None
    return PointResult(seeds=1, failed=0, by_seed={seed: result.by_seed[seed]})


def accuracy(result: PointResult | None) -> str:
    values = result.accuracy() if result else None
    return plus_minus(values.mean, values.deviation) if values else ""


def accuracy_of(kept: Kept, method: str, dataset: str) -> str:
    """With the number of seeds, where these are not three."""
    result = kept.of(method, dataset)
    return "" if result is None else f"{accuracy(result)}{seeds_of(len(result.by_seed))}"


def megabytes(result: PointResult | None) -> str:
    return costs(result)[0]


def costs(result: PointResult | None) -> list[str]:
    """Traffic of a client in a round, its weights in millions, and core-minutes of a run."""
    if result is None:
        return ["", "", ""]
    megabytes = result.mean(lambda cell: cell.megabytes)
    parameters = result.mean(lambda cell: cell.parameters)
    minutes = result.mean(lambda cell: cell.core_minutes)
    return [
        "" if megabytes is None else "< 0.01" if megabytes < 0.005 else f"{megabytes:.2f}",
        "" if parameters is None else f"{parameters:.2f}",
        "" if minutes is None else f"{minutes:.1f}",
    ]
