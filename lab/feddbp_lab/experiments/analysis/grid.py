"""The rows and columns of a part's tables, and the results where they meet."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from feddbp_lab.experiments.analysis.comparison import Difference, compare
from feddbp_lab.experiments.analysis.outcomes import Outcomes, PointResult, SeedValues
from feddbp_lab.experiments.analysis.paper import PaperValue, paper_value
from feddbp_lab.experiments.analysis.rounds import Moment
from feddbp_lab.experiments.plan import Coordinates, Part
from feddbp_lab.results.protocol import Basis


@dataclass(frozen=True, kw_only=True)
class GridRow:
    key: str
    labels: tuple[str, ...]
    title: str
    """Where the axes are not named beside it."""
    coordinates: Coordinates
    is_control: bool = False
    """Whether its runs are those of the row before, without exchange."""


@dataclass(frozen=True, kw_only=True)
class GridColumn:
    group: str
    """Empty if the part has no axes in its columns."""
    head: str
    """Within its group; empty if the group has one column only."""
    coordinates: Coordinates
    rule: str | None = None
    """The inference rule; None for each method's own."""

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (self.group, self.head)))


class ResultGrid:
    """The results of a part by row and column."""

    def __init__(self, part: Part, outcomes: Outcomes) -> None:
        self.part = part
        self._outcomes = outcomes
        self.rows = tuple(self._rows())
        self.places = tuple(self._places())
        """The columns, but for inference rules."""
        rules = self._rules() if part.report.rules else [None]
        self.columns = tuple(self.with_rule(place, rule) for place in self.places for rule in rules)

    @property
    def row_heads(self) -> tuple[str, ...]:
        return tuple(self.part.axis(name).title for name in self.part.report.rows)

    @property
    def references(self) -> tuple[GridRow, ...]:
        """The rows to which the others are compared."""
        plain = {row.key: row for row in self.rows if not row.is_control}
        return tuple(plain[key] for key in self.part.report.compare)

    @property
    def has_controls(self) -> bool:
        return any(row.is_control for row in self.rows)

    @cached_property
    def bases(self) -> set[Basis]:
        """Of all results in it."""
        results = (self.result(row, place) for row in self.rows for place in self.places)
        return set(itertools.chain.from_iterable(result.bases for result in results if result is not None))

    def with_rule(self, place: GridColumn, rule: str | None) -> GridColumn:
        """The column of a rule at a place."""
        head = ", ".join(filter(None, (place.head, (rule or "").replace("_", " "))))
        return replace(place, head=head, rule=rule)

    def result(self, row: GridRow, column: GridColumn) -> PointResult | None:
        """None for a control that is not part of the plan."""
        point = self.part.point({**row.coordinates, **column.coordinates})
        return self._outcomes.without_exchange(point) if row.is_control else self._outcomes.at(point)

    def values(self, row: GridRow, column: GridColumn) -> SeedValues | None:
        """The accuracy that the part reports."""
        result = self.result(row, column)
        if result is None:
            return None
        is_validation = self.part.report.value == "validation"
        return result.validation(column.rule) if is_validation else result.accuracy(column.rule)

    def difference(
        self, row: GridRow, reference: GridRow, column: GridColumn, moment: Moment = Moment.REPORTED
    ) -> Difference | None:
        """Of a row to another one in the same column; None for a row to itself, or without common clients."""
        ours, theirs = self.result(row, column), self.result(reference, column)
        if row == reference or ours is None or theirs is None:
            return None
        return compare(ours, theirs, column.rule, moment)

    def federation_share(self, row: GridRow, column: GridColumn, moment: Moment = Moment.REPORTED) -> Difference | None:
        """Difference of a row to its control; None if it has none."""
        control = next((other for other in self.rows if other.is_control and other.key == row.key), None)
        return None if row.is_control or control is None else self.difference(row, control, column, moment)

    def paper(self, row: GridRow, column: GridColumn) -> PaperValue | None:
        """The value in the paper; None if it has none, as for every control."""
        if row.is_control:
            return None
        part = self.part
        return paper_value(part.report.paper, part.paper_key(row.coordinates), part.paper_key(column.coordinates))

    def _rows(self) -> Iterator[GridRow]:
        part = self.part
        for coordinates in part.combinations(part.report.rows):
            *first, last = part.labels(coordinates)
            title = part.heading(coordinates)
            row = GridRow(key=part.key(coordinates), labels=(*first, last), title=title, coordinates=coordinates)
            yield row
            if any(point.without_exchange for point in part.points_at(coordinates)):
                yield replace(
                    row, labels=(*first, f"{last}, no exchange"), title=f"{title}, no exchange", is_control=True
                )

    def _places(self) -> Iterator[GridColumn]:
        part, report = self.part, self.part.report
        groups, sweep = part.combinations(report.columns), part.combinations([report.x] if report.x else [])
        for group, x in itertools.product(groups, sweep):
            yield GridColumn(group=part.heading(group), head=part.heading(x), coordinates={**group, **x})

    def _rules(self) -> list[str | None]:
        """Every inference rule recorded in the part; before there are results, the method's own (None)."""
        found = itertools.chain.from_iterable(self._outcomes.at(point).rules() for point in self.part.points)
        return list(dict.fromkeys(found)) or [None]
