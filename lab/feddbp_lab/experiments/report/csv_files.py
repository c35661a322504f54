"""The results of a plan as CSV: one file by point of its grids, and one by client."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from feddbp_lab.experiments.analysis.comparison import Difference, accuracy_interval
from feddbp_lab.experiments.analysis.grid import GridColumn, GridRow, ResultGrid
from feddbp_lab.experiments.analysis.intervals import Interval
from feddbp_lab.experiments.analysis.outcomes import Outcomes, PointResult, SeedValues
from feddbp_lab.experiments.analysis.paper import PaperValue
from feddbp_lab.experiments.analysis.rounds import Moment
from feddbp_lab.experiments.plan import Part, Plan

Line = dict[str, Any]


def results_csv(plan: Plan, outcomes: Outcomes) -> str:
    """Accuracies in per cent, unrounded, for every inference rule; an axis that a part does not have is empty there."""
    return _as_csv(plan, (line for part in plan.parts for line in _result_lines(ResultGrid(part, outcomes))))


def clients_csv(plan: Plan, outcomes: Outcomes) -> str:
    """Each client of each seed, by its method's own inference rule; parts that report test accuracy only."""
    grids = (ResultGrid(part, outcomes) for part in plan.parts if part.report.value == "test")
    return _as_csv(plan, (line for grid in grids for line in _client_lines(grid)))


def _as_csv(plan: Plan, lines: Iterable[Line]) -> str:
    listed = list(lines)
    # the axes of all parts before the other columns
    axes = (axis.name for part in plan.parts for axis in part.axes)
    columns = dict.fromkeys(("part", *axes, *(name for line in listed for name in line)))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(listed)
    return text.getvalue()


def _result_lines(grid: ResultGrid) -> Iterator[Line]:
    for row, place, result in _points(grid):
        own_rules = {cell.inference for cell in result.results}
        for rule in result.rules() or [""]:
            yield {
                **_position(grid.part, row, place),
                "rule": rule,
                "counts": "yes" if rule in own_rules else "no",
                "seeds": result.seeds,
                "done": len(result.results),
                "failed": result.failed,
                "basis": " ".join(sorted(result.bases)),
                **(_test_values(grid, row, place, rule) if grid.part.report.value == "test" else {}),
                **_statistics("validation", result.validation(rule)),
                "core_minutes": _number(result.total(lambda cell: cell.core_minutes)),
                **_paper(grid.paper(row, place)),
            }


def _test_values(grid: ResultGrid, row: GridRow, place: GridColumn, rule: str) -> Line:
    result = grid.result(row, place)
    assert result is not None
    column = grid.with_rule(place, rule or None)
    values = {
        **_statistics("accuracy", result.accuracy(rule)),
        **_bounds("accuracy", accuracy_interval(result, rule)),
        **_statistics("last", result.accuracy(rule, Moment.LAST)),
        **_statistics("before_fine_tuning", result.accuracy(rule, Moment.EXCHANGED)),
    }
    for reference in grid.references:
        values |= _difference(f"difference_to_{reference.key}", grid.difference(row, reference, column))
    return values | _difference("federation_share", grid.federation_share(row, column))


def _client_lines(grid: ResultGrid) -> Iterator[Line]:
    for row, place, result in _points(grid):
        differences = {reference.key: grid.difference(row, reference, place) for reference in grid.references}
        for seed, cell in result.by_seed.items():
            found = cell.rules[cell.inference]
            for client in sorted(found.reported.test.samples):
                yield {
                    **_position(grid.part, row, place),
                    "seed": seed,
                    "client": client,
                    "round": found.reported.round,
                    "test_samples": found.reported.test.samples[client],
                    "accuracy": _number(found.reported.test.accuracy_of(client)),
                    "last": _number(found.last.test.accuracy_of(client)),
                    "rare_test_samples": cell.rare.samples.get(client, 0),
                    "rare_accuracy": _number(cell.rare.accuracy_of(client)),
                    **{
                        f"gain_over_{key}": _number(difference.gains.get((seed, client)) if difference else None)
                        for key, difference in differences.items()
                    },
                }


def _points(grid: ResultGrid) -> Iterator[tuple[GridRow, GridColumn, PointResult]]:
    for row, place in itertools.product(grid.rows, grid.places):
        result = grid.result(row, place)
        if result is not None:
            yield row, place, result


def _position(part: Part, row: GridRow, place: GridColumn) -> Line:
    at = {**row.coordinates, **place.coordinates}
    position = {
        "part": part.title,
        "exchange": "",
        **{name: part.axis(name).values[index].key for name, index in at.items()},
    }
    return position | ({"exchange": "off"} if row.is_control else {})


def _statistics(name: str, values: SeedValues | None) -> Line:
    if values is None:
        return {f"{name}_mean": "", f"{name}_std": ""}
    return {
        f"{name}_mean": values.mean,
        f"{name}_std": _number(values.deviation),
        **{f"{name}_seed_{seed}": value for seed, value in values.by_seed.items()},
    }


def _difference(name: str, difference: Difference | None) -> Line:
    if difference is None:
        return {name: "", **_bounds(name, None)}
    return {name: difference.mean, **_bounds(name, difference.interval)}


def _bounds(name: str, interval: Interval | None) -> Line:
    return {
        f"{name}_low": "" if interval is None else interval.low,
        f"{name}_high": "" if interval is None else interval.high,
    }


def _paper(value: PaperValue | None) -> Line:
    return {
        "paper_mean": "" if value is None else value.mean,
        "paper_std": "" if value is None else _number(value.deviation),
    }


def _number(value: float | None) -> float | str:
    return "" if value is None else value
