"""K-means of weighted vectors, deterministic in the rows, their order and the generator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from feddbp_common.wire.payload import FloatArray
from feddbp_server.strategies.numerics import Wide, squared_distances

Indices = npt.NDArray[np.intp]

_BLOCK: Final = 4096
"""Rows converted to float64 at a time; bounds memory for any number of clients."""


def weighted_kmeans(
    rows: FloatArray, weights: Wide, *, clusters: int, iterations: int, random: np.random.Generator
) -> Wide:
    """Centroids [clusters, d] of at least as many rows [n, d], each with a positive weight.

    It starts with rows drawn by weight. A cluster that loses all its rows is restarted at the row with the largest
    weight times squared distance.
    """
    first = random.choice(len(rows), size=clusters, replace=False, p=weights / weights.sum())
    centroids = rows[first].astype(np.float64)
    before: Indices | None = None
    for _ in range(iterations):
        nearest, squares = _nearest(rows, centroids)
        _fill_empty(nearest, weights * squares, clusters)
        if before is not None and np.array_equal(nearest, before):
            break
        centroids = _means(rows, weights, nearest, centroids)
        before = nearest
    return centroids


def _nearest(rows: FloatArray, centroids: Wide) -> tuple[Indices, Wide]:
    """The centroid each row is nearest to, the first of equals, and the squared distance to it."""
    nearest = np.empty(len(rows), dtype=np.intp)
    squares = np.empty(len(rows), dtype=np.float64)
    for block, wide in _blocks(rows):
        distances = squared_distances(wide, centroids)
        nearest[block] = distances.argmin(axis=1)
        squares[block] = distances.min(axis=1)
    return nearest, squares


def _fill_empty(nearest: Indices, costs: Wide, clusters: int) -> None:
    """Moves the costliest row into every empty cluster, while any row has a cost."""
    sizes = np.bincount(nearest, minlength=clusters)
    for cluster in np.flatnonzero(sizes == 0):
        movable = np.where(sizes[nearest] > 1, costs, 0.0)
        worst = int(movable.argmax())
        if movable[worst] <= 0.0:
            return
        sizes[nearest[worst]] -= 1
        nearest[worst], costs[worst], sizes[cluster] = cluster, 0.0, 1


def _means(rows: FloatArray, weights: Wide, nearest: Indices, centroids: Wide) -> Wide:
    """The weighted mean of every cluster; one without rows keeps its centroid."""
    clusters = len(centroids)
    sums = np.zeros_like(centroids)
    totals = np.bincount(nearest, weights=weights, minlength=clusters)
    for block, wide in _blocks(rows):
        shares = np.zeros((clusters, len(wide)))
        shares[nearest[block], np.arange(len(wide))] = weights[block]
        sums += shares @ wide
    filled = totals > 0
    return np.where(filled[:, None], sums / np.where(filled, totals, 1.0)[:, None], centroids)


def _blocks(rows: FloatArray) -> Iterator[tuple[slice, Wide]]:
    for start in range(0, len(rows), _BLOCK):
        block = slice(start, start + _BLOCK)
        yield block, rows[block].astype(np.float64)
