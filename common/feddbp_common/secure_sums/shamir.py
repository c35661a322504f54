"""Shamir's secret sharing over a prime field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

PRIME: Final = 2**256 + 297
"""The smallest prime above 2^256, so that every 32 bytes are an element."""
SECRET_BYTES: Final = 32
SHARE_BYTES: Final = 33
_KNOWN_WEIGHTS: Final = 512
"""Sets of holders whose weights are kept: where shares do not fit together, many sets are tried for each secret."""

DrawBelow = Callable[[int], int]
"""A uniform element below a bound, from a source that fits secrets."""


def split(
    secret: int, holders: Iterable[int], *, threshold: int, draw: DrawBelow, prime: int = PRIME
) -> dict[int, int]:
    """A share for each holder; any `threshold` of them give the secret, and fewer tell nothing about it."""
    coefficients = [secret, *(draw(prime) for _ in range(threshold - 1))]
    return {holder: _polynomial(coefficients, _point(holder), prime) for holder in holders}


def combine(shares: Mapping[int, int], *, threshold: int, prime: int = PRIME) -> int:
    """The secret, from `threshold` of the shares."""
    if len(shares) < threshold:
        raise ValueError(f"{len(shares)} shares, but the threshold is {threshold}")
    holders = tuple(sorted(shares)[:threshold])
    weights = _weights_at_zero(holders, prime)
    return sum(weight * shares[holder] for weight, holder in zip(weights, holders, strict=True)) % prime


def _point(holder: int) -> int:
    """Where a holder's share lies on the polynomial; never zero, which is the secret's place."""
    return holder + 1


def _polynomial(coefficients: Sequence[int], point: int, prime: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * point + coefficient) % prime
    return value


@lru_cache(maxsize=_KNOWN_WEIGHTS)
def _weights_at_zero(holders: tuple[int, ...], prime: int) -> tuple[int, ...]:
    """Lagrange's weights; the same holders reveal the secrets of all clients of a round."""
    points = [_point(holder) for holder in holders]
    weights = []
    for own in points:
        numerator = denominator = 1
        for other in points:
            if other != own:
                numerator = numerator * other % prime
                denominator = denominator * (other - own) % prime
        weights.append(numerator * pow(denominator, -1, prime) % prime)
    return tuple(weights)
