"""Draws from the discrete Gaussian, exactly: Canonne, Kamath and Steinke, NeurIPS 2020, algorithms 1 to 3.

The probability of an integer x is proportional to exp(-x^2 / (2 variance)). All arithmetic is on integers, so that no
rounding of a floating-point number tells of what the noise is added to.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from math import isqrt
from typing import TypeAlias

Below: TypeAlias = Callable[[int], int]
"""Draws one of 0 to n-1, each with the same probability. Noise that protects data comes from the operating system."""


def discrete_gaussian(variance: int, below: Below = secrets.randbelow) -> int:
    """Draws from the discrete Gaussian with this parameter, which is its variance but for a vanishing part."""
    if variance <= 0:
        raise ValueError(f"the variance is {variance}, not positive")
    scale = isqrt(variance) + 1
    while True:
        drawn = _discrete_laplace(scale, below)
        # accepted with probability exp(-(|drawn| - variance / scale)^2 / (2 variance))
        away = abs(drawn) * scale - variance
        if _happens_exp(away * away, 2 * variance * scale * scale, below):
            return drawn


def _discrete_laplace(scale: int, below: Below) -> int:
    """The probability of x is proportional to exp(-|x| / scale)."""
    while True:
        rest = below(scale)
        if not _happens_exp(rest, scale, below):
            continue
        whole = 0
        while _happens_exp(1, 1, below):
            whole += 1
        size = rest + scale * whole
        is_negative = below(2)
        if size or not is_negative:  # zero once, and not as minus zero too
            return -size if is_negative else size


def _happens_exp(numerator: int, denominator: int, below: Below) -> bool:
    """True with probability exp(-numerator / denominator)."""
    while numerator > denominator:
        if not _happens_exp_of_part(1, 1, below):
            return False
        numerator -= denominator
    return _happens_exp_of_part(numerator, denominator, below)


def _happens_exp_of_part(numerator: int, denominator: int, below: Below) -> bool:
    """As `_happens_exp`, for a fraction of at most one: the alternating series of the exponential, term by term."""
    terms = 1
    while below(denominator * terms) < numerator:
        terms += 1
    return terms % 2 == 1
