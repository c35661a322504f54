"""What a client releases of features that no client trains: class sums and counts with discrete Gaussian noise.

Two data sets are neighbours if one has one sample more. That sample changes the row of its class alone: the sum by a
vector of at most the clipping bound, and the count by one. Both are in one table of integers, in which the bound is
`SUM_UNITS` and a sample `COUNT_UNITS`, so that the table changes by at most the root of `SENSITIVITY_SQUARED`.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from feddbp_common.differential_privacy.discrete_gaussian import Below, discrete_gaussian

Table = npt.NDArray[np.int64]
"""Per class the sum of the channels and, in the last column, the count: [C, d + 1] in units."""

SUM_UNITS: Final = 1 << 16
"""Of the clipping bound."""
COUNT_UNITS: Final = 1 << 15
"""Of one sample. Half of the bound: its noise is then twice that of a channel, which has an eighth more."""
SENSITIVITY_SQUARED: Final = SUM_UNITS**2 + COUNT_UNITS**2


@dataclass(frozen=True)
class Release:
    """Sums of clipped features, in multiples of the clipping bound, and counts; both with noise, so also negative."""

    sums: npt.NDArray[np.floating[Any]]
    """[C, d]."""
    counts: npt.NDArray[np.floating[Any]]
    """[C]."""

    @classmethod
    def of(cls, table: Table, *, exact: bool = False) -> Release:
        """Rounded to single precision after the noise, where it cannot undo it; exact if its noise is only a share."""
        sums, counts = table[:, :-1] / SUM_UNITS, table[:, -1] / COUNT_UNITS
        return cls(sums, counts) if exact else cls(sums.astype(np.float32), counts.astype(np.float32))


def exact_table(
    features: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], *, clip: float, classes: int
) -> Table:
    """The table of samples without noise. Every sample is clipped and rounded towards zero on its own."""
    wide = np.nan_to_num(features.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0) / clip
    norms = np.sqrt(np.einsum("ij,ij->i", wide, wide))
    wide /= np.maximum(norms, 1.0)[:, np.newaxis]
    rows = np.trunc(wide * SUM_UNITS).astype(np.int64)
    # rounding of the division may leave a norm just above the bound
    longer = np.einsum("ij,ij->i", rows, rows) > SUM_UNITS**2
    rows[longer] = np.trunc(rows[longer] * (1 - 2**-20)).astype(np.int64)
    table = np.zeros((classes, features.shape[1] + 1), dtype=np.int64)
    np.add.at(table[:, :-1], labels, rows)
    table[:, -1] = np.bincount(labels, minlength=classes) * COUNT_UNITS
    return table


def variance_of(noise_multiplier: float, *, clients: int = 1) -> int:
    """The variance of the noise of each of `clients` whose tables are only ever seen as their sum; in squared units.

    One client that is seen alone adds it all. The sum of n discrete Gaussians is not one, but so near to it with
    variances of many units that no epsilon shows it (Kairouz, Liu and Steinke, ICML 2021). `clients` has to be the
    smallest number of whom a sum is ever taken: those that drop out add no noise.
    """
    return ceil(noise_multiplier**2 * SENSITIVITY_SQUARED / clients)


def with_noise(table: Table, variance: int, below: Below = secrets.randbelow) -> Table:
    """The table with noise on every entry, also of classes that the client does not have."""
    noise = [discrete_gaussian(variance, below) for _ in range(table.size)]
    return table + np.array(noise, dtype=np.int64).reshape(table.shape)


def deviation_of_sums(noise_multiplier: float) -> float:
    """The standard deviation of each channel of a release's sums, in multiples of the clipping bound."""
    return float(noise_multiplier * SENSITIVITY_SQUARED**0.5 / SUM_UNITS)


def deviation_of_counts(noise_multiplier: float) -> float:
    """The standard deviation of a release's counts, in samples."""
    return float(noise_multiplier * SENSITIVITY_SQUARED**0.5 / COUNT_UNITS)
