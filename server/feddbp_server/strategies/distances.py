"""Distances between rows of numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from feddbp_common.wire.payload import AnyArray

Wide = npt.NDArray[np.float64]


def squared_distances(a: AnyArray, b: AnyArray) -> Wide:
    """|a_i - b_j|^2 as [n, m]. By a product, which subtracts numbers that nearly cancel: hence in float64."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    squares: Wide = np.square(a).sum(axis=1)[:, None] + np.square(b).sum(axis=1) - 2.0 * (a @ b.T)
    return np.maximum(squares, 0.0)
