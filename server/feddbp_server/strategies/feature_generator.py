"""FedGen's generator: noise and a label in, a feature of that label out.

In numpy, since the server does not import torch and the gradients of two layers and a normalisation are short.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from feddbp_common.methods.fedgen import (
    GENERATOR,
    HIDDEN_BIAS,
    HIDDEN_WEIGHT,
    NORM_BIAS,
    NORM_EPSILON,
    NORM_MEAN,
    NORM_VARIANCE,
    NORM_WEIGHT,
    OUTPUT_BIAS,
    OUTPUT_WEIGHT,
)
from feddbp_common.wire.payload import AnyArray, FloatArray
from feddbp_server.strategies.numerics import Wide, linear_layer

Labels = npt.NDArray[np.int64]

_MOMENTUM: Final = 0.1
"""Weight of a batch's statistics in the running ones."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Made:
    """Features of a batch, and the intermediate values their gradients need."""

    features: Wide
    inputs: Wide
    normalised: Wide
    deviations: Wide
    hidden: Wide


class FeatureGenerator:
    """Linear, batch normalisation, ReLU, linear; in train mode; float64 within a round, float32 between rounds."""

    def __init__(self, tensors: Mapping[str, AnyArray]) -> None:
        self.parts: dict[str, Wide] = {name: tensors[name].astype(np.float64) for name in GENERATOR}

    @classmethod
    def fresh(cls, *, noise_dim: int, classes: int, hidden: int, width: int, seed: int) -> Self:
        random = np.random.default_rng(seed)
        hidden_weight, hidden_bias = linear_layer(random, inputs=noise_dim + classes, outputs=hidden)
        output_weight, output_bias = linear_layer(random, inputs=hidden, outputs=width)
        ones, zeros = np.ones(hidden), np.zeros(hidden)
        layers = (hidden_weight, hidden_bias, ones, zeros, zeros, ones, output_weight, output_bias)
        return cls(dict(zip(GENERATOR, layers, strict=True)))

    def tensors(self) -> dict[str, FloatArray]:
        return {name: part.astype(np.float32) for name, part in self.parts.items()}

    def make(self, noise: Wide, labels: Labels) -> Made:
        """Generates features of the labels; updates the running statistics."""
        parts = self.parts
        classes = parts[HIDDEN_WEIGHT].shape[1] - noise.shape[1]
        inputs = np.concatenate([noise, np.eye(classes)[labels]], axis=1)
        sums = inputs @ parts[HIDDEN_WEIGHT].T + parts[HIDDEN_BIAS]
        variances = sums.var(axis=0)
        deviations = np.sqrt(variances + NORM_EPSILON)
        normalised = (sums - sums.mean(axis=0)) / deviations
        self._update_running(NORM_MEAN, sums.mean(axis=0))
        self._update_running(NORM_VARIANCE, variances * len(sums) / (len(sums) - 1))
        hidden = np.maximum(parts[NORM_WEIGHT] * normalised + parts[NORM_BIAS], 0.0)
        return Made(
            features=hidden @ parts[OUTPUT_WEIGHT].T + parts[OUTPUT_BIAS],
            inputs=inputs,
            normalised=normalised,
            deviations=deviations,
            hidden=hidden,
        )

    def gradients(self, made: Made, slope: Wide) -> dict[str, Wide]:
        """Gradients of a loss by every trained part, from its slope by the features."""
        scaled = (slope @ self.parts[OUTPUT_WEIGHT]) * (made.hidden > 0)
        below = scaled * self.parts[NORM_WEIGHT]
        # a change of one sample also changes the batch's mean and deviation
        along = (below * made.normalised).mean(axis=0)
        sums = (below - below.mean(axis=0) - made.normalised * along) / made.deviations
        return {
            HIDDEN_WEIGHT: sums.T @ made.inputs,
            HIDDEN_BIAS: sums.sum(axis=0),
            NORM_WEIGHT: (scaled * made.normalised).sum(axis=0),
            NORM_BIAS: scaled.sum(axis=0),
            OUTPUT_WEIGHT: slope.T @ made.hidden,
            OUTPUT_BIAS: slope.sum(axis=0),
        }

    def _update_running(self, name: str, batch: Wide) -> None:
        self.parts[name] = (1 - _MOMENTUM) * self.parts[name] + _MOMENTUM * batch


def diversity_loss(noise: Wide, features: Wide) -> tuple[float, Wide]:
    """exp(-m) and its slope by features; m is the mean over pairs of noise distance times feature distance.

    Noise distances are mean squares, feature distances mean absolute differences.
    """
    samples, width = features.shape
    noise_distances = np.array([np.square(noise - one).mean(axis=1) for one in noise])
    total, slope = 0.0, np.empty_like(features)
    for i, one in enumerate(features):
        # sample by sample: all differences at once would need samples x samples x width numbers
        differences = one - features
        total += float(noise_distances[i] @ np.abs(differences).mean(axis=1))
        slope[i] = noise_distances[i] @ np.sign(differences)
    loss = float(np.exp(-total / samples**2))
    # every pair is counted twice, once from each side
    return loss, slope * (-2.0 * loss / (samples**2 * width))
