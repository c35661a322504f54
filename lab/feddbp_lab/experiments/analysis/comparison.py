"""Two results compared on the same clients and seeds: the difference, its interval, and the gain of each client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from feddbp_lab.experiments.analysis.intervals import (
    FloatArray,
    Interval,
    SeedObservations,
    SeedStatistic,
    bootstrap_interval,
    mean_over_seeds,
)
from feddbp_lab.experiments.analysis.outcomes import PointResult
from feddbp_lab.experiments.analysis.rounds import Candidates, ClientCounts, Moment, RuleResult


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference in percentage points, on the clients and seeds that both sides have."""

    mean: float
    """Of the accuracy over all samples of a seed, then over seeds."""
    interval: Interval | None
    """None of a single client, of whom every replicate is the same."""
    gains: Mapping[tuple[int, int], float]
    """Of each client's own accuracy, by seed and client."""
    planned_seeds: int

    @property
    def seeds(self) -> int:
        return len({seed for seed, _ in self.gains})

    @property
    def is_beyond_chance(self) -> bool:
        """Never with a single seed, whose interval says nothing about other splits of the data."""
        return self.seeds > 1 and self.interval is not None and self.interval.excludes_zero

    @property
    def mean_gain(self) -> float:
        """Every client counts alike."""
        return fmean(self.gains.values())

    @property
    def losses(self) -> list[float]:
        """The gains of clients that are worse off, the worst first."""
        return sorted(gain for gain in self.gains.values() if gain < 0)


def compare(
    ours: PointResult,
    theirs: PointResult,
    rule: str | None = None,
    moment: Moment = Moment.REPORTED,
    *,
    their_rule: str | None = None,
) -> Difference | None:
    """Compares a method's own rule with the other method's own, and any other rule with the same one.

    A rule that the other method lacks, such as that of a second network, is compared with its own. `their_rule` names
    another one, which it must have.
    """
    is_own_rule = any(cell.inference == rule for cell in ours.results)
    other_rule = None if is_own_rule else rule
    pairs = []
    for seed in sorted(ours.by_seed.keys() & theirs.by_seed.keys()):
        one, of_other = ours.by_seed[seed].of_rule(rule), theirs.by_seed[seed]
        other = of_other.of_rule(their_rule) if their_rule else of_other.of_rule(other_rule) or of_other.of_rule(None)
        if one and other:
            pairs.append(
                _Pair.of(seed, one.counts(moment), other.counts(moment)).with_chosen_rounds(one, other, moment)
            )
    return _difference(pairs, planned_seeds=ours.seeds)


def compare_rare(ours: PointResult, theirs: PointResult) -> Difference | None:
    """Compares on test samples of rare classes, in the round of each result; that it was chosen is not in the interval.

    Clients without such samples are left out, but the round is chosen on samples of all.
    """
    seeds = sorted(ours.by_seed.keys() & theirs.by_seed.keys())
    pairs = [_Pair.of(seed, ours.by_seed[seed].rare, theirs.by_seed[seed].rare) for seed in seeds]
    return _difference(pairs, planned_seeds=ours.seeds)


def accuracy_interval(result: PointResult, rule: str | None) -> Interval | None:
    """The interval of an accuracy, in per cent. Clients differ in difficulty: it is wider than that of a difference."""
    found = [of_rule.candidates for cell in result.results if (of_rule := cell.of_rule(rule))]
    seeds = [candidates for candidates in found if candidates.client_count]
    return bootstrap_interval(seeds) if seeds else None


@dataclass(frozen=True, eq=False, kw_only=True)
class _Pair:
    """Two cells of a seed, on the clients that both have."""

    seed: int
    clients: tuple[int, ...]
    """In the order of their ids, on which the draws of the bootstrap depend."""
    gains: SeedObservations
    """In per cent, in the rounds of the results."""
    statistic: SeedStatistic

    @classmethod
    def of(cls, seed: int, ours: ClientCounts, theirs: ClientCounts) -> _Pair:
        # a client with other test samples, of another amount of data, is not the same
        same = (client for client, count in ours.samples.items() if count and theirs.samples.get(client) == count)
        clients = tuple(sorted(same))
        gains = SeedObservations(
            sums=np.array([100 * (ours.correct[client] - theirs.correct[client]) for client in clients]),
            samples=np.array([float(ours.samples[client]) for client in clients]),
        )
        return cls(seed=seed, clients=clients, gains=gains, statistic=gains)

    def with_chosen_rounds(self, ours: RuleResult, theirs: RuleResult, moment: Moment) -> _Pair:
        """With intervals that contain the choice of the round."""
        if not self.clients:
            return self
        candidates = [found.candidates_at(moment).among(self.clients) for found in (ours, theirs)]
        return replace(self, statistic=ChosenDifference(*candidates))


@dataclass(frozen=True, eq=False)
class ChosenDifference:
    """The difference of two accuracies, each in the round that is best for the drawn clients."""

    ours: Candidates
    theirs: Candidates

    @property
    def client_count(self) -> int:
        return self.ours.client_count

    def values(self, draws: FloatArray) -> FloatArray:
        return np.asarray(self.ours.values(draws) - self.theirs.values(draws), dtype=np.float64)


def _difference(pairs: Iterable[_Pair], *, planned_seeds: int) -> Difference | None:
    shared = [pair for pair in pairs if pair.clients]
    if not shared:
        return None
    gains = {
        (pair.seed, client): float(total / count)
        for pair in shared
        for client, total, count in zip(pair.clients, pair.gains.sums, pair.gains.samples, strict=True)
    }
    interval = bootstrap_interval([pair.statistic for pair in shared]) if len(gains) > 1 else None
    mean = mean_over_seeds([pair.gains for pair in shared])
    return Difference(mean=mean, interval=interval, gains=gains, planned_seeds=planned_seeds)
