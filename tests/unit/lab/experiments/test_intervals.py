"""Bootstrap intervals: what they must be by hand, by a loop, and over many simulated experiments."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from feddbp_lab.experiments.analysis.intervals import (
    Interval,
    SeedObservations,
    bootstrap_interval,
    mean_over_seeds,
)


def observed(sums: npt.ArrayLike, samples: npt.ArrayLike) -> SeedObservations:
    return SeedObservations(sums=np.array(sums, dtype=float), samples=np.array(samples, dtype=float))


def simulated(
    random: np.random.Generator, *, seeds: int, clients: int, gain: float = 0.0, spread: float = 0.05
) -> list[SeedObservations]:
    """Differences between two methods, whose true mean over clients is the gain."""
    return [
        observed(100 * random.normal(gain, spread, clients), np.full(clients, 100))  # a hundred samples a client
        for _ in range(seeds)
    ]


@pytest.mark.parametrize("seeds", [1, 3])
def test_identical_results_have_an_interval_of_zero_width_at_zero(seeds: int) -> None:
    same = [observed([0, 0, 0], [10, 20, 30])] * seeds
    assert bootstrap_interval(same) == Interval(0.0, 0.0)
    assert not bootstrap_interval(same).excludes_zero


def test_a_gain_that_every_client_has_gives_a_tight_interval_around_it() -> None:
    seeds = [observed([0.5, 1.0, 1.5], [10, 20, 30]), observed([2.0, 0.5], [40, 10])]
    interval = bootstrap_interval(seeds)
    assert (interval.low, interval.high) == pytest.approx((0.05, 0.05))
    assert interval.excludes_zero


def test_an_interval_contains_the_statistic_and_is_wider_where_clients_differ() -> None:
    alike, unlike = ([observed([5 - by, 5 + by, 5 - by, 5 + by], [10] * 4)] for by in (1, 4))
    for seeds in (alike, unlike):
        interval = bootstrap_interval(seeds)
        assert interval.low <= mean_over_seeds(seeds) == 0.5 <= interval.high
    narrow, wide = bootstrap_interval(alike), bootstrap_interval(unlike)
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_seeds_that_differ_widen_the_interval() -> None:
    same, other = observed([5, 5], [10, 10]), observed([1, 1], [10, 10])
    assert bootstrap_interval([same, same]) == Interval(0.5, 0.5)
    assert bootstrap_interval([same, other]) == Interval(0.1, 0.5)


@pytest.mark.parametrize("clients", [(4, 4), (3, 5), (1, 2)])
def test_a_loop_gives_the_same_interval(clients: tuple[int, ...]) -> None:
    random = np.random.default_rng(7)
    seeds = [observed(random.normal(3, 2, count), random.integers(5, 30, count)) for count in clients]
    drawn = np.random.default_rng(0)
    chosen_seeds = drawn.integers(len(seeds), size=(300, len(seeds)))
    places = drawn.random((300, len(seeds), max(clients)))
    replicates = []
    for row, of_replicate in zip(chosen_seeds, places, strict=True):
        accuracies = []
        for number, shares in zip(row, of_replicate, strict=True):
            seed = seeds[number]
            picked = [int(share * len(seed.sums)) for share in shares[: len(seed.sums)]]
            accuracies.append(sum(seed.sums[at] for at in picked) / sum(seed.samples[at] for at in picked))
        replicates.append(sum(accuracies) / len(accuracies))
    expected = np.quantile(replicates, (0.025, 0.975))
    interval = bootstrap_interval(seeds, replicates=300)
    assert (interval.low, interval.high) == pytest.approx(tuple(expected))


def test_the_same_results_give_the_same_interval() -> None:
    seeds = simulated(np.random.default_rng(1), seeds=2, clients=6)
    assert bootstrap_interval(seeds) == bootstrap_interval(seeds)


@pytest.mark.parametrize(("gain", "least", "most"), [(0.0, 0.88, 0.98), (0.02, 0.88, 0.98)])
def test_about_nineteen_of_twenty_intervals_contain_the_true_difference(gain: float, least: float, most: float) -> None:
    random = np.random.default_rng(3)
    intervals = [
        bootstrap_interval(simulated(random, seeds=1, clients=20, gain=gain), replicates=500) for _ in range(200)
    ]
    covered = sum(interval.low <= gain <= interval.high for interval in intervals)
    assert least <= covered / 200 <= most


def test_a_difference_that_is_not_there_is_rarely_told_from_zero_and_a_large_one_nearly_always() -> None:
    random = np.random.default_rng(5)

    def found(gain: float) -> float:
        simulations = (simulated(random, seeds=3, clients=20, gain=gain) for _ in range(100))
        return float(np.mean([bootstrap_interval(seeds, replicates=500).excludes_zero for seeds in simulations]))

    assert found(0.0) <= 0.08
    assert found(0.04) >= 0.95
