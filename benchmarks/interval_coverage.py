"""How often the intervals of a report contain the true difference.

`python -m benchmarks.interval_coverage` draws experiments whose true difference is known: 20 clients with 60 to 240
test samples, whose differences scatter by chance and by what is particular to a client. The effect may also vary from
one split of the data to the next, by a multiple of the chance that remains in the mean over one split's clients. It
prints how many of 100 experiments have an interval that contains the difference, which should be 95: for the difference
after a round that is given, and for that of two results whose rounds are chosen on validation samples, with intervals
that choose them again and with intervals that take them as given.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

import numpy as np

from feddbp_lab.experiments.analysis.comparison import ChosenDifference
from feddbp_lab.experiments.analysis.intervals import FloatArray, SeedObservations, SeedStatistic, bootstrap_interval
from feddbp_lab.experiments.analysis.rounds import Candidates

_CLIENTS: Final = 20
_TEST_SAMPLES: Final = (60, 241)
_TRUE: Final = 2.0
"""Points."""
_CLIENT_DEVIATION: Final = 2.0
"""Of a client's own effect, in points."""
_SAMPLE_DEVIATION: Final = 60.0
"""Of the difference on one sample, in points: on most samples both methods agree."""
_ROUNDS: Final = 40
_VALIDATION_SHARE: Final = 0.3
"""Of the number of test samples."""
_ROUND_DEVIATION: Final = 25.0
"""Of the accuracy on one sample from one round to the next, in points."""
_VARIATIONS: Final = (0.0, 1.0, 2.0)
_SEEDS: Final = (1, 2, 3, 5)

_Split = Callable[[float, np.random.Generator], SeedStatistic]
"""By how much the effect varies between splits."""


def coverage(split: _Split, seeds: int, variation: float, *, experiments: int, random: np.random.Generator) -> float:
    """The share of experiments whose interval contains the true difference."""
    contained = 0
    for _ in range(experiments):
        interval = bootstrap_interval([split(variation, random) for _ in range(seeds)], replicates=2_000)
        contained += interval.low <= _TRUE <= interval.high
    return contained / experiments


def given_round(variation: float, random: np.random.Generator) -> SeedObservations:
    samples = _test_samples(random)
    scatter = np.sqrt(_CLIENT_DEVIATION**2 + _SAMPLE_DEVIATION**2 / samples)
    effect = _effect(samples, scatter, variation, random)
    return SeedObservations(sums=samples * (effect + scatter * random.standard_normal(_CLIENTS)), samples=samples)


def chosen_rounds(variation: float, random: np.random.Generator) -> ChosenDifference:
    """Both results rise to a level, about which they vary from round to round; the level of one is higher."""
    samples = _test_samples(random)
    scatter = np.sqrt(_CLIENT_DEVIATION**2 + _SAMPLE_DEVIATION**2 / samples)
    effects = _effect(samples, scatter, variation, random) + scatter * random.standard_normal(_CLIENTS)
    curve = 40 * (1 - np.exp(-np.arange(1, _ROUNDS + 1) / 5))
    return ChosenDifference(
        *(_candidates(curve + effect[:, np.newaxis], samples, random) for effect in (effects, 0 * effects))
    )


def rounds_taken_as_given(variation: float, random: np.random.Generator) -> SeedObservations:
    chosen = chosen_rounds(variation, random)
    everyone = np.ones((1, _CLIENTS))
    after = [side.correct[:, side.rounds(everyone)[0]] for side in (chosen.ours, chosen.theirs)]
    return SeedObservations(sums=100 * (after[0] - after[1]), samples=chosen.ours.samples[:, 0])


def _candidates(levels: FloatArray, samples: FloatArray, random: np.random.Generator) -> Candidates:
    """Accuracies of [clients, rounds] on test and validation samples."""
    test, validation = (
        np.repeat(count[:, np.newaxis], _ROUNDS, axis=1) for count in (samples, _VALIDATION_SHARE * samples)
    )

    def correct(counts: FloatArray) -> FloatArray:
        noise = _ROUND_DEVIATION / np.sqrt(counts) * random.standard_normal(counts.shape)
        return np.asarray(counts * (levels + noise) / 100, dtype=np.float64)

    return Candidates(
        clients=tuple(range(_CLIENTS)),
        correct=correct(test),
        samples=test,
        choosing_correct=correct(validation),
        choosing_samples=validation,
    )


def _test_samples(random: np.random.Generator) -> FloatArray:
    return random.integers(*_TEST_SAMPLES, size=_CLIENTS).astype(np.float64)


def _effect(samples: FloatArray, scatter: FloatArray, variation: float, random: np.random.Generator) -> float:
    """In a split of the data."""
    chance = np.sqrt((samples**2 * scatter**2).sum()) / samples.sum()  # of the mean over this split's clients
    return float(_TRUE + variation * chance * random.standard_normal())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.interval_coverage", description=__doc__)
    parser.add_argument("--experiments", type=int, default=1_000, help="of each kind (default: 1000)")
    experiments: int = parser.parse_args().experiments
    random = np.random.default_rng(0)
    for name, split in (
        ("a given round", given_round),
        ("chosen rounds, chosen again", chosen_rounds),
        ("chosen rounds, taken as given", rounds_taken_as_given),
    ):
        print(f"{name:30}" + "".join(f"{seeds:>4} seed{'s' if seeds > 1 else ' '}" for seeds in _SEEDS))
        for variation in _VARIATIONS:
            shares = [coverage(split, seeds, variation, experiments=experiments, random=random) for seeds in _SEEDS]
            print(f"  variation between splits {variation:2.0f} " + "".join(f"{100 * share:10.0f}" for share in shares))


if __name__ == "__main__":
    main()
