"""Histograms of durations, in constant memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

from feddbp_server.run.state_machine.state import Phase

PHASE_BOUNDS: Final = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 14400.0, 86400.0)
"""A phase lasts from milliseconds of aggregation to a day of a forgotten pause."""
AGGREGATION_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Durations:
    """A histogram of durations."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.seconds = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def add(self, seconds: float) -> None:
        self.seconds += seconds
        self._counts[bisect_left(self.bounds, seconds)] += 1

    @property
    def cumulative(self) -> list[int]:
        """For every bound the number of durations up to it, and last the number of all."""
        return list(accumulate(self._counts))


class PhaseTimes:
    """Durations of the phases that began and ended in this process."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.by_phase = {phase: Durations(PHASE_BOUNDS) for phase in Phase}
        self._clock = clock
        self._phase: Phase | None = None
        self._since = clock()

    def enter(self, phase: Phase) -> None:
        """Records a change of phase; entering the current phase again does nothing."""
        if phase is self._phase:
            return
        now = self._clock()
        if self._phase is not None:
            self.by_phase[self._phase].add(now - self._since)
        self._phase, self._since = phase, now

    @property
    def age(self) -> float:
        """Seconds in the current phase."""
        return self._clock() - self._since
