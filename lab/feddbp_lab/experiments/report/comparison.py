"""Two results compared on the same clients and seeds: the difference, its interval, and the gain of each client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from feddbp_lab.experiments.report.intervals import Interval, SeedObservations, bootstrap_interval, pooled_mean
from feddbp_lab.experiments.report.outcomes import CellResult, ClientCounts, Moment, PointResult

_CountsOf = Callable[[CellResult], ClientCounts]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference in percentage points, on the clients and seeds that both sides have."""

    mean: float
    """Of the accuracy over all samples of a seed, then over seeds."""
    interval: Interval | None
    """None of a single client, of whom every replicate is the same."""
    gains: Mapping[tuple[int, int], float]
    """Of each client's own accuracy, by seed and client."""

    @property
    def mean_gain(self) -> float:
        """Every client counts alike."""
        return fmean(self.gains.values())

    @property
    def losses(self) -> list[float]:
        """The gains of clients that are worse off, the worst first."""
        return sorted(gain for gain in self.gains.values() if gain < 0)


def compare(
    ours: PointResult, theirs: PointResult, rule: str | None, moment: Moment = Moment.REPORTED
) -> Difference | None:
    """Compares a method's own rule with the other method's own, and any other rule with the same one.

    A rule that the other method lacks, such as that of a second network, is compared with its own.
    """
    is_own_rule = any(cell.inference == rule for cell in ours.results)
    other_rule = None if is_own_rule else rule
    return _difference(ours, theirs, _test_counts(rule, moment), _test_counts_or_own(other_rule, moment))


def compare_rare(ours: PointResult, theirs: PointResult) -> Difference | None:
    """Compares on test samples of rare classes."""
    return _difference(ours, theirs, lambda cell: cell.rare, lambda cell: cell.rare)


def accuracy_interval(result: PointResult, rule: str | None) -> Interval | None:
    """The interval of an accuracy, in per cent. Clients differ in difficulty: it is wider than that of a difference."""
    counts = [_test_counts(rule, Moment.REPORTED)(cell) for cell in result.results]
    seeds = [_observations(of_seed.correct, of_seed.samples) for of_seed in counts if any(of_seed.samples.values())]
    return bootstrap_interval(seeds) if seeds else None


def _test_counts(rule: str | None, moment: Moment) -> _CountsOf:
    def counts_of(cell: CellResult) -> ClientCounts:
        found = cell.of_rule(rule)
        return found.counts(moment) if found else ClientCounts.none()

    return counts_of


def _test_counts_or_own(rule: str | None, moment: Moment) -> _CountsOf:
    return lambda cell: _test_counts(rule if rule in cell.rules else None, moment)(cell)


def _difference(
    ours: PointResult, theirs: PointResult, our_counts: _CountsOf, their_counts: _CountsOf
) -> Difference | None:
    seeds: list[SeedObservations] = []
    gains: dict[tuple[int, int], float] = {}
    for seed in sorted(ours.by_seed.keys() & theirs.by_seed.keys()):
        one, other = our_counts(ours.by_seed[seed]), their_counts(theirs.by_seed[seed])
        # a client with other test samples, of another amount of data, is not the same
        same = {client: count for client, count in one.samples.items() if count and other.samples.get(client) == count}
        if same:
            more = {client: one.correct[client] - other.correct[client] for client in same}
            seeds.append(_observations(more, same))
            gains |= {(seed, client): 100 * more[client] / count for client, count in same.items()}
    if not seeds:
        return None
    interval = bootstrap_interval(seeds) if len(gains) > 1 else None
    return Difference(mean=pooled_mean(seeds), interval=interval, gains=gains)


def _observations(sums: Mapping[int, float], samples: Mapping[int, int]) -> SeedObservations:
    """In per cent; clients in the order of their ids, which the draws of the bootstrap depend on."""
    clients = sorted(client for client, count in samples.items() if count)
    return SeedObservations(
        sums=np.array([100 * sums[client] for client in clients]),
        samples=np.array([float(samples[client]) for client in clients]),
    )
