"""The result of a benchmark, and the measurement of ratios on a noisy machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A measured value and its target."""

    question: str
    value: float
    bar: float | None
    """None for a value without a target."""
    at_most: bool = True
    unit: str = "x"
    detail: str = ""

    @property
    def holds(self) -> bool:
        if self.bar is None:
            return True
        return self.value <= self.bar if self.at_most else self.value >= self.bar


def table_of(measured: list[Measurement]) -> Table:
    """Returns a table of the values and their targets."""
    table = Table("what", "measured", "bar", "", "detail")
    for measurement in measured:
        sign = "<=" if measurement.at_most else ">="
        bar = "" if measurement.bar is None else f"{sign} {measurement.bar:g} {measurement.unit}"
        verdict = "[green]holds[/]" if measurement.holds else "[red]missed[/]"
        table.add_row(
            measurement.question,
            f"{measurement.value:.4g} {measurement.unit}",
            bar,
            verdict if measurement.bar is not None else "",
            measurement.detail,
        )
    return table


def seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def interleaved_ratio(
    ours: Callable[[], object], theirs: Callable[[], object], *, repeats: int, warm_up: int = 2
) -> tuple[float, float, float]:
    """Returns the median of pairwise ratios and the median seconds of both functions.

    Both are timed in turn, in alternating order, so that other load on the machine affects both alike.
    """
    for _ in range(warm_up):
        ours()
        theirs()
    pairs = []
    for repeat in range(repeats):
        if repeat % 2:
            reference = seconds_of(theirs)
            measured = seconds_of(ours)
        else:
            measured = seconds_of(ours)
            reference = seconds_of(theirs)
        pairs.append((measured, reference))
    return (
        median(measured / reference for measured, reference in pairs),
        median(measured for measured, _ in pairs),
        median(reference for _, reference in pairs),
    )
