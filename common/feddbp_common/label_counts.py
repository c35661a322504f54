"""Samples per class as a client tells them to a server: exactly, or in buckets."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from feddbp_common.config.exchange import PrivacyConfig

IntT = TypeVar("IntT", bound=np.integer[Any])
Counts = npt.NDArray[np.int64]


def declared_counts(counts: Counts, privacy: PrivacyConfig) -> Counts:
    """What a client declares of its training samples of every class: an empty array if nothing, else never all zero.

    In buckets, a class that releases no prototype because it is too small is declared as absent, unless no class would
    be left.
    """
    if not privacy.declares_counts:
        return counts[:0]
    if privacy.counts == "exact":
        return counts
    shown = np.where(counts >= privacy.min_class_samples, counts, 0)
    return in_buckets(shown if shown.any() else counts)


def in_buckets(counts: npt.NDArray[IntT]) -> npt.NDArray[IntT]:
    """The nearest powers of two by ratio, off by a factor of at most the root of two; zero stays zero."""
    return np.array([_bucket(int(count)) for count in counts], dtype=counts.dtype)


def _bucket(count: int) -> int:
    if not count:
        return 0
    below = 1 << (count.bit_length() - 1)
    return below if count * count < 2 * below * below else 2 * below
