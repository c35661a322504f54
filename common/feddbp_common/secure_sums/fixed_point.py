"""Reals as integers modulo 2^64, whose sums are exact in any order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from feddbp_common.errors import FedDBPError

FRACTION_BITS: Final = 32
_HALF_RANGE: Final = 2.0**63

Words = npt.NDArray[np.uint64]


def largest_value(parties: int) -> float:
    """The magnitude below which the sum of one value from each party cannot wrap around."""
    return _HALF_RANGE / 2.0**FRACTION_BITS / parties


def to_fixed(values: npt.ArrayLike, *, parties: int) -> Words:
    """Rounds to the nearest multiple of 2^-32, ties to even.

    Raises:
        FedDBPError: a value is not finite, or too large to be summed over so many parties.
    """
    wide = np.asarray(values, dtype=np.float64)
    limit = largest_value(parties)
    # negated, so that NaN is refused too
    if not np.all(np.abs(wide) < limit):
        # without the value: the message may reach the server
        raise FedDBPError(f"a value is too large to be summed over {parties} clients; the limit is {limit:g}")
    return np.rint(np.ldexp(wide, FRACTION_BITS)).astype(np.int64).view(np.uint64)


def from_fixed(total: Words) -> npt.NDArray[np.float64]:
    """A sum as reals."""
    return np.ldexp(total.view(np.int64).astype(np.float64), -FRACTION_BITS)


def added(vectors: Iterable[Words]) -> Words | None:
    """Their sum; None of none."""
    total: Words | None = None
    for vector in vectors:
        total = vector.copy() if total is None else np.add(total, vector, out=total)
    return total
