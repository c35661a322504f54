"""Bootstrap intervals of accuracies and of paired differences, over seeds and the clients of each seed.

A replicate draws as many seeds as there are, with replacement, and for each of them as many of its clients as it has,
with replacement; its statistic is the mean over the drawn seeds of the accuracy (or difference) over all samples of the
drawn clients. The interval leaves out 2.5 % of the replicates at either end. Clients are drawn whole, because the
samples of a client share its network and its classes; two methods are compared by differences on the same client. With
a single seed only clients are drawn: such an interval says nothing about other splits of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

CONFIDENCE: Final = 0.95
REPLICATES: Final = 10_000
_BLOCK: Final = 1_000
"""Replicates that are computed at a time, which bounds memory."""
_SEED: Final = 0
"""Fixed: the same results give the same report."""


_STUDENT: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""97.5 % quantiles of Student's t with 1, 2, ... degrees of freedom."""


def student_quantile(freedom: int) -> float:
    """For a 95 % interval of a mean; beyond ten degrees of freedom by an expansion that is right to three digits."""
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    normal = 1.959964
    return (
        normal
        + (normal**3 + normal) / (4 * freedom)
        + (5 * normal**5 + 16 * normal**3 + 3 * normal) / (96 * freedom**2)
    )


@dataclass(frozen=True)
class Interval:
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, eq=False, kw_only=True)
class SeedObservations:
    """The clients of one seed: a sum over the samples of each, such as correct ones, and the number of samples."""

    sums: FloatArray
    samples: FloatArray


def pooled_mean(seeds: Sequence[SeedObservations]) -> float:
    """The statistic: the sums over the samples of all clients, then the mean over seeds."""
    return float(np.mean([seed.sums.sum() / seed.samples.sum() for seed in seeds]))


def bootstrap_interval(seeds: Sequence[SeedObservations], *, replicates: int = REPLICATES) -> Interval:
    """The interval of `pooled_mean`; every client must have samples."""
    random = np.random.default_rng(_SEED)
    blocks = [min(_BLOCK, replicates - start) for start in range(0, replicates, _BLOCK)]
    statistics = np.concatenate([_replicates(seeds, size, random) for size in blocks])
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(statistics, (tail, 1 - tail))
    return Interval(float(low), float(high))


def _replicates(seeds: Sequence[SeedObservations], size: int, random: np.random.Generator) -> FloatArray:
    counts = np.array([len(seed.sums) for seed in seeds])
    sums, samples = (_padded([getattr(seed, name) for seed in seeds]) for name in ("sums", "samples"))
    drawn = random.integers(len(seeds), size=(size, len(seeds)))
    clients = counts[drawn][..., np.newaxis]
    # seeds may have different numbers of clients: positions beyond the last one count for nothing
    picked = (random.random((*drawn.shape, counts.max())) * clients).astype(np.int64)
    is_client = np.arange(counts.max()) < clients
    at = drawn[..., np.newaxis], picked
    totals = np.where(is_client, sums[at], 0.0).sum(axis=2) / np.where(is_client, samples[at], 0.0).sum(axis=2)
    return np.asarray(totals.mean(axis=1), dtype=np.float64)


def _padded(rows: Sequence[FloatArray]) -> FloatArray:
    padded = np.zeros((len(rows), max(map(len, rows))))
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return padded
