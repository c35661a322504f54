"""Epsilon by our accountant, by dp-accounting, by the exact curve of the Gaussian, and by summing the discrete one."""

from __future__ import annotations

import math

import dp_accounting
import pytest

from feddbp_client.privacy.release import confirmed_epsilon
from feddbp_common.differential_privacy.accountant import composed, epsilon_of, noise_for
from feddbp_common.errors import ConfigurationError

PROMISES = [(0.1, 1e-5), (0.5, 1e-6), (1.0, 1e-5), (2.0, 1e-5), (8.0, 1e-5), (20.0, 1e-9)]


def exact_delta(multiplier: float, epsilon: float) -> float:
    """Of the continuous Gaussian: Balle and Wang, ICML 2018, theorem 8."""

    def cdf(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    half, scaled = 1 / (2 * multiplier), epsilon * multiplier
    return cdf(half - scaled) - math.exp(epsilon) * cdf(-half - scaled)


def exact_epsilon(multiplier: float, delta: float) -> float:
    low, high = 0.0, 500.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if exact_delta(multiplier, middle) <= delta else (middle, high)
    return high


def summed_delta(variance: float, shift: int, epsilon: float) -> float:
    """Of the discrete Gaussian: the hockey-stick divergence between it and itself moved by `shift`, term by term."""
    reach = int(60 * math.sqrt(variance)) + shift
    total = math.fsum(math.exp(-x * x / (2 * variance)) for x in range(-reach, reach + 1))
    terms = (
        math.exp(-x * x / (2 * variance)) - math.exp(epsilon - (x - shift) ** 2 / (2 * variance))
        for x in range(-reach, reach + 1)
    )
    return math.fsum(term for term in terms if term > 0) / total


@pytest.mark.parametrize(("epsilon", "delta"), PROMISES)
def test_noise_for_an_epsilon_has_that_epsilon_by_both_accountants(epsilon: float, delta: float) -> None:
    multiplier = noise_for(epsilon, delta)
    assert 0.999 * epsilon < epsilon_of(multiplier, delta) <= epsilon
    assert 0.999 * epsilon < confirmed_epsilon(multiplier, delta) <= epsilon


@pytest.mark.parametrize(("epsilon", "delta"), PROMISES)
def test_epsilon_is_above_the_exact_one_of_the_gaussian_and_not_far(epsilon: float, delta: float) -> None:
    multiplier = noise_for(epsilon, delta)
    exact = exact_epsilon(multiplier, delta)
    assert exact < epsilon_of(multiplier, delta) < 1.2 * exact


@pytest.mark.parametrize(("variance", "shift"), [(4.0, 1), (10.0, 3), (400.0, 10)])
def test_the_discrete_gaussian_keeps_the_promise_when_summed_up(variance: float, shift: int) -> None:
    for delta in (1e-3, 1e-6):
        epsilon = epsilon_of(math.sqrt(variance) / shift, delta)
        assert summed_delta(variance, shift, epsilon) <= delta
        assert summed_delta(variance, shift, epsilon / 1.3) > delta  # the promise is not far from the truth


def test_releases_add_up_as_dp_accounting_composes_them() -> None:
    multipliers, delta = (2.0, 3.0, 3.0, 8.0), 1e-6
    accountant = dp_accounting.rdp.RdpAccountant(orders=[1 + x / 50 for x in range(1, 2000)])
    for multiplier in multipliers:
        accountant.compose(dp_accounting.GaussianDpEvent(multiplier))
    assert epsilon_of(composed(multipliers), delta) == pytest.approx(accountant.get_epsilon(delta), rel=1e-3)
    assert composed([5.0]) == pytest.approx(5.0)


def test_an_epsilon_that_no_noise_gives_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no noise gives an epsilon of 1e-09"):
        noise_for(1e-9, 1e-12)
