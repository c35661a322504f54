"""Histograms of durations."""

from __future__ import annotations

import pytest

from feddbp_server.metrics.calls import BOUNDS
from feddbp_server.run.durations import AGGREGATION_BOUNDS, PHASE_BOUNDS, Durations, PhaseTimes
from feddbp_server.run.state_machine.state import Phase


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_bound_belongs_to_its_bucket_and_the_last_count_is_of_all() -> None:
    durations = Durations((1.0, 2.0))
    for seconds in (0.5, 1.0, 1.5, 2.0, 7.0):
        durations.add(seconds)
    assert durations.cumulative == [2, 4, 5]
    assert durations.seconds == 12.0


@pytest.mark.parametrize("bounds", [PHASE_BOUNDS, AGGREGATION_BOUNDS, BOUNDS])
def test_bounds_rise(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))


def test_a_phase_is_counted_when_it_is_over() -> None:
    clock = Clock()
    times = PhaseTimes(clock)
    clock.now = 150.0  # the time before the first phase counts for none
    times.enter(Phase.WAITING)
    clock.now = 157.0
    times.enter(Phase.WAITING)
    assert times.by_phase[Phase.WAITING].cumulative[-1] == 0
    assert times.age == 7.0
    clock.now = 160.0
    times.enter(Phase.COLLECTING)
    assert times.by_phase[Phase.WAITING].seconds == 10.0
    assert times.by_phase[Phase.WAITING].cumulative[-1] == 1
    assert times.age == 0.0
