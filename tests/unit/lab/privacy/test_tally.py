"""The AUC of several attacks and its interval."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from feddbp_lab.privacy.tally import Tally

SIZES = ((3, 4), (10, 6), (25, 12), (8, 20))
"""Members and others of four prototypes."""


def drawn(random: np.random.Generator, expected: float) -> Tally:
    """Attacks whose scores are normal, with members so far ahead that the AUC has this expectation."""
    ahead = math.sqrt(2) * NormalDist().inv_cdf(expected)
    tally = Tally()
    for label, (members, others) in enumerate(SIZES):
        tally.add((0, label), random.normal(size=members) + ahead, random.normal(size=others))
    return tally


@pytest.mark.parametrize("expected", [0.5, 0.7, 0.9, 0.97])
def test_nineteen_of_twenty_intervals_have_the_true_auc(expected: float) -> None:
    random = np.random.default_rng(1)
    found = [drawn(random, expected).interval for _ in range(400)]
    assert 0.92 <= np.mean([low <= expected <= high for low, high in found]) <= 1.0
    assert np.mean([high - low for low, high in found]) < 0.4


def test_the_auc_weights_prototypes_by_their_pairs() -> None:
    tally = Tally()
    tally.add((0, 0), np.array([1.0]), np.array([0.0]))
    tally.add((0, 1), np.array([0.0, 1.0, 2.0]), np.array([3.0]))
    tally.add((0, 2), np.array([]), np.array([3.0]))
    assert (tally.prototypes, tally.pairs, tally.auc) == (2, 4, 0.25)


@pytest.mark.parametrize(("images", "low"), [(1, 0.0), (3, 0.5), (30, 0.9)])
def test_certainty_from_few_images_is_less_certain(images: int, low: float) -> None:
    tally = Tally()
    tally.add((0, 0), np.ones(images), np.zeros(images))
    assert tally.auc == tally.interval.high == 1
    assert low <= tally.interval.low < 1
    mirrored = Tally()
    mirrored.add((0, 0), np.zeros(images), np.ones(images))
    assert mirrored.interval == pytest.approx((0, 1 - tally.interval.low))


def test_attacks_with_other_noise_are_no_further_prototypes() -> None:
    once, often = Tally(), Tally()
    members, others = np.array([0.1, 0.5, 0.9]), np.array([0.2, 0.4])
    once.add((0, 0), members, others)
    for _ in range(20):
        often.add((0, 0), members, others)
    assert (often.prototypes, often.pairs) == (1, 20 * once.pairs)
    assert often.interval == pytest.approx(once.interval)


def test_prototypes_that_differ_more_than_images_widen_the_interval() -> None:
    random = np.random.default_rng(0)
    alike, apart = Tally(), Tally()
    for label in range(6):
        others = random.normal(size=200)
        alike.add((0, label), random.normal(size=200) + 1, others)
        apart.add((0, label), random.normal(size=200) + (3 if label % 2 else -1), others)
    assert alike.interval.high - alike.interval.low < 0.1
    assert apart.interval.high - apart.interval.low > 0.3
