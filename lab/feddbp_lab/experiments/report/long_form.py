"""Tables as CSV: one line for each place and each rule of inference, for programs to go on with."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from feddbp_lab.experiments.plan import Part, Place, Plan
from feddbp_lab.experiments.report.outcomes import Outcomes, Spread
from feddbp_lab.experiments.report.paper import printed_in


def as_csv(plan: Plan, outcomes: Outcomes) -> str:
    """Accuracies in per cent, unrounded; an axis that a part does not have is empty there."""
    lines = [line for part in plan.parts for line in _lines(part, outcomes)]
    # axes first, whatever part they are of
    axes = (axis.name for part in plan.parts for axis in part.axes)
    columns = dict.fromkeys(("part", *axes, *(name for line in lines for name in line)))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _lines(part: Part, outcomes: Outcomes) -> Iterator[dict[str, Any]]:
    for place in part.places([axis.name for axis in part.axes]):
        measured = outcomes.at(part.point(place))
        counting = {result.inference for result in measured.results}
        for rule in measured.rules() or [""]:
            yield {
                "part": part.title,
                **{name: part.axis(name).values[index].key for name, index in place.items()},
                "rule": rule,
                "counts": "yes" if rule in counting else "no",
                "seeds": measured.seeds,
                "done": len(measured.results),
                "failed": measured.failed,
                **_spread("best", measured.best(rule)),
                **_spread("last", measured.last(rule)),
                "difference": _difference(part, outcomes, place, rule),
                **_paper(part, place),
            }


def _spread(name: str, spread: Spread | None) -> dict[str, Any]:
    if spread is None:
        return {f"{name}_mean": "", f"{name}_std": ""}
    return {
        f"{name}_mean": spread.mean,
        f"{name}_std": "" if spread.deviation is None else spread.deviation,
        **{f"{name}_seed_{seed}": value for seed, value in spread.of_seed.items()},
    }


def _difference(part: Part, outcomes: Outcomes, place: Place, rule: str) -> float | str:
    """Of the best to that of the row others are compared with, in the same column.

    What counts is compared with what counts there, whatever its rule; any other rule with the same one.
    """
    reference = next((row for row in part.places(part.report.rows) if part.key(row) == part.report.compare), None)
    if reference is None or {**place, **reference} == place:
        return ""
    measured = outcomes.at(part.point(place))
    counts = any(result.inference == rule for result in measured.results)
    here, there = measured.best(rule), outcomes.at(part.point({**place, **reference})).best(None if counts else rule)
    above = here.above(there) if here and there else None
    return "" if above is None else above


def _paper(part: Part, place: Place) -> dict[str, Any]:
    report = part.report
    across = [*report.columns, *([report.x] if report.x else [])]
    row, column = ({name: place[name] for name in names} for names in (report.rows, across))
    value = printed_in(report.paper, part.paper_key(row), part.paper_key(column))
    if value is None:
        return {"paper_mean": "", "paper_std": ""}
    return {"paper_mean": value.mean, "paper_std": "" if value.deviation is None else value.deviation}
