"""Bootstrap intervals of accuracies and of paired differences, over seeds and the clients of each seed.

A replicate draws as many seeds as there are, with replacement, and for each of them as many of its clients as it has,
with replacement; its value is the mean over the drawn seeds of a statistic of the drawn clients, such as the accuracy
over all their samples. The interval leaves out 2.5 % of the replicates at either end. Clients are drawn whole, because
the samples of a client share its network and its classes; two methods are compared by differences on the same client.
With a single seed only clients are drawn: such an interval says nothing about other splits of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

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
        """To the two digits that are printed; further ones depend on the draws."""
        return round(self.low, 2) > 0 or round(self.high, 2) < 0


class SeedStatistic(Protocol):
    """A statistic over the clients of one seed."""

    @property
    def client_count(self) -> int: ...

    def values(self, draws: FloatArray) -> FloatArray:
        """By draw, of [draws, clients] with how often each client is drawn."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SeedObservations:
    """A sum over the samples of each client, such as correct ones, and the number of samples, which is above 0."""

    sums: FloatArray
    samples: FloatArray

    @property
    def client_count(self) -> int:
        return len(self.sums)

    def values(self, draws: FloatArray) -> FloatArray:
        """The sums over the samples of all drawn clients."""
        return np.asarray((draws @ self.sums) / (draws @ self.samples), dtype=np.float64)


def mean_over_seeds(seeds: Sequence[SeedStatistic]) -> float:
    """The statistic of all clients, without a draw."""
    return float(np.mean([seed.values(np.ones((1, seed.client_count)))[0] for seed in seeds]))


def bootstrap_interval(seeds: Sequence[SeedStatistic], *, replicates: int = REPLICATES) -> Interval:
    """The interval of `mean_over_seeds`."""
    random = np.random.default_rng(_SEED)
    blocks = [min(_BLOCK, replicates - start) for start in range(0, replicates, _BLOCK)]
    values = np.concatenate([_replicates(seeds, size, random) for size in blocks])
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values, (tail, 1 - tail))
    return Interval(float(low), float(high))


def _replicates(seeds: Sequence[SeedStatistic], size: int, random: np.random.Generator) -> FloatArray:
    drawn = random.integers(len(seeds), size=(size, len(seeds)))
    places = random.random((*drawn.shape, max(seed.client_count for seed in seeds)))
    values = np.empty(drawn.shape)
    for number, seed in enumerate(seeds):
        is_drawn = drawn == number
        # seeds may have different numbers of clients: places beyond the last one count for nothing
        values[is_drawn] = seed.values(_draws(places[is_drawn][:, : seed.client_count]))
    return np.asarray(values.mean(axis=1), dtype=np.float64)


def _draws(places: FloatArray) -> FloatArray:
    """How often each client is drawn, by draw, of places between 0 and 1: one for each client that is drawn."""
    size, clients = places.shape
    picked = (places * clients).astype(np.int64) + clients * np.arange(size)[:, np.newaxis]
    return np.bincount(picked.ravel(), minlength=size * clients).reshape(size, clients).astype(np.float64)
