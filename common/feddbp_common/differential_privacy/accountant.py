"""Epsilon of Gaussian noise from its Rényi divergence, and the noise for an epsilon.

Noise whose deviation is z times the sensitivity has a Rényi divergence of at most order / (2 z^2), the discrete
Gaussian as the continuous one and in any dimension (Canonne, Kamath and Steinke, NeurIPS 2020). Several releases add
up: the sum of their 1 / z^2 is that of one release. The conversion to epsilon and delta is that of the same paper,
minimised over all orders.

Clients compute epsilon by `dp-accounting` too, which is an independent implementation, and release nothing if the two
disagree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from typing import Final

from feddbp_common.errors import ConfigurationError

_STEPS: Final = 120
_MARGIN: Final = 1 - 1e-5
"""Of epsilon, so that it holds by another accountant too."""
_LARGEST_MULTIPLIER: Final = 1e6


def epsilon_of(noise_multiplier: float, delta: float) -> float:
    """The least epsilon of noise whose deviation is this multiple of the sensitivity, at this delta."""
    cost = 1 / (2 * noise_multiplier**2)
    low, high = math.log(1e-6), math.log(1e12)  # of the order less one; the bound has one minimum in it
    for _ in range(_STEPS):
        first, second = low + (high - low) / 3, high - (high - low) / 3
        if _bound(math.exp(first), cost, delta) < _bound(math.exp(second), cost, delta):
            high = second
        else:
            low = first
    return max(0.0, _bound(math.exp((low + high) / 2), cost, delta))


def best_order(noise_multiplier: float, delta: float) -> float:
    """About the order at which the bound is least."""
    return 1 + noise_multiplier * math.sqrt(2 * math.log(1 / delta))


@cache
def noise_for(epsilon: float, delta: float) -> float:
    """The least noise multiplier whose epsilon is a little below this one, rounded up in the sixth digit."""
    low, high, target = 1e-3, _LARGEST_MULTIPLIER, epsilon * _MARGIN
    if epsilon_of(high, delta) > target:
        raise ConfigurationError(f"no noise gives an epsilon of {epsilon:g} at a delta of {delta:g}")
    for _ in range(_STEPS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if epsilon_of(middle, delta) <= target else (middle, high)
    digits = 5 - math.floor(math.log10(high))
    return math.ceil(high * 10.0**digits) / 10.0**digits


def composed(noise_multipliers: Iterable[float]) -> float:
    """The noise multiplier of one release that costs as much as all of these together."""
    costs = sum(multiplier**-2 for multiplier in noise_multipliers)
    return math.inf if not costs else costs**-0.5


def _bound(order_less_one: float, cost: float, delta: float) -> float:
    order = 1 + order_less_one
    return order * cost + math.log(order_less_one / order) - (math.log(delta) + math.log(order)) / order_less_one
