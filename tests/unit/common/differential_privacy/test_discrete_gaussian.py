"""The sampler draws from the discrete Gaussian, by integers alone."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from feddbp_common.differential_privacy.discrete_gaussian import discrete_gaussian

DRAWS = 20_000


def exact(variance: int, reach: int) -> dict[int, float]:
    weights = {x: math.exp(-x * x / (2 * variance)) for x in range(-reach, reach + 1)}
    total = sum(weights.values())
    return {x: weight / total for x, weight in weights.items()}


@pytest.mark.parametrize("variance", [1, 2, 9])
def test_frequencies_are_those_of_the_distribution(variance: int) -> None:
    below = random.Random(variance).randrange
    found = Counter(discrete_gaussian(variance, below) for _ in range(DRAWS))
    expected = exact(variance, 40)
    likely = [x for x, probability in expected.items() if probability * DRAWS >= 10]
    chi_square = sum((found[x] - expected[x] * DRAWS) ** 2 / (expected[x] * DRAWS) for x in likely)
    freedom = len(likely) - 1
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom)
    assert sum(found[x] for x in likely) > 0.99 * DRAWS


def test_a_large_variance_is_that_of_the_draws() -> None:
    variance, below = 10**10 + 7, random.Random(0).randrange
    drawn = [discrete_gaussian(variance, below) for _ in range(4000)]
    # the variance of a sample of Gaussians has a relative deviation of the root of 2 / n
    assert sum(x * x for x in drawn) / len(drawn) / variance == pytest.approx(1, abs=5 * math.sqrt(2 / 4000))
    assert abs(sum(drawn) / len(drawn)) < 5 * math.sqrt(variance / 4000)


def test_noise_is_not_the_same_twice() -> None:
    assert len({discrete_gaussian(1 << 40) for _ in range(20)}) == 20


@pytest.mark.parametrize("variance", [0, -1])
def test_no_noise_is_an_error(variance: int) -> None:
    with pytest.raises(ValueError, match="not positive"):
        discrete_gaussian(variance)
