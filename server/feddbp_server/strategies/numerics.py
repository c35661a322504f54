"""Numerics that strategies share: distances between rows, and initial weights distributed as in torch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from feddbp_common.methods.linear_head import HEAD_BIAS, HEAD_WEIGHT
from feddbp_common.seeding import derive_seed
from feddbp_common.wire.payload import AnyArray, FloatArray
from feddbp_server.strategies.base import RunFacts

Wide = npt.NDArray[np.float64]


def squared_distances(a: AnyArray, b: AnyArray) -> Wide:
    """|a_i - b_j|^2 as [n, m], by a matrix product; in float64, since nearly equal numbers are subtracted."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    squares: Wide = np.square(a).sum(axis=1)[:, None] + np.square(b).sum(axis=1) - 2.0 * (a @ b.T)
    return np.maximum(squares, 0.0)


def linear_layer(random: np.random.Generator, *, inputs: int, outputs: int) -> tuple[FloatArray, FloatArray]:
    """Weight [outputs, inputs] and bias [outputs], uniform within 1/sqrt(inputs) as in torch.nn.Linear."""
    bound = inputs**-0.5
    weight = random.uniform(-bound, bound, (outputs, inputs)).astype(np.float32)
    bias = random.uniform(-bound, bound, outputs).astype(np.float32)
    return weight, bias


def initial_head(facts: RunFacts) -> dict[str, FloatArray]:
    """The head every client starts from; the same for every method, so that they are comparable."""
    random = np.random.default_rng(derive_seed(facts.seed, "head"))
    weight, bias = linear_layer(random, inputs=facts.shape.feature_dim, outputs=facts.shape.classes)
    return {HEAD_WEIGHT: weight, HEAD_BIAS: bias}
