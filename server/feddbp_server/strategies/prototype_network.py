"""FedTGP's network: maps a class id to a prototype, trained to be close to the clients' prototypes.

In numpy, since the server does not import torch and the gradients of two layers and one loss are short.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from feddbp_common.wire.payload import AnyArray, FloatArray
from feddbp_server.strategies.numerics import Wide, linear_layer, squared_distances

ClassIds = npt.NDArray[np.intp]

_PREFIX: Final = "tgp."
_SMALLEST_SQUARE: Final = 1e-12
"""Below this squared distance the gradient, undefined at zero, is taken as zero."""


@dataclass(eq=False)
class PrototypeNetwork:
    """Embedding, linear, ReLU, linear; all of width d. A step replaces arrays and never changes them in place."""

    embedding: FloatArray
    hidden_weight: FloatArray
    hidden_bias: FloatArray
    output_weight: FloatArray
    output_bias: FloatArray

    @classmethod
    def fresh(cls, *, classes: int, width: int, seed: int) -> Self:
        random = np.random.default_rng(seed)
        embedding = random.standard_normal((classes, width)).astype(np.float32)  # as torch.nn.Embedding
        hidden = linear_layer(random, inputs=width, outputs=width)
        output = linear_layer(random, inputs=width, outputs=width)
        return cls(embedding, *hidden, *output)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, AnyArray]) -> Self:
        return cls(**{field.name: tensors[_PREFIX + field.name] for field in fields(cls)})

    def tensors(self) -> dict[str, AnyArray]:
        return {_PREFIX + field.name: getattr(self, field.name) for field in fields(self)}

    def prototypes(self) -> FloatArray:
        """One row for every class."""
        return self._output(self._hidden())

    def step(self, vectors: FloatArray, labels: ClassIds, *, margin: float, learning_rate: float) -> float:
        """One step of gradient descent on the mean loss of a batch; returns the loss before it."""
        hidden = self._hidden()
        loss, slope = margin_loss(self._output(hidden), vectors, labels, margin=margin)
        above = slope.astype(np.float32)  # gradients of the loss, from the output backwards
        below = (above @ self.output_weight) * (hidden > 0)
        descents = {
            "output_weight": above.T @ hidden,
            "output_bias": above.sum(axis=0),
            "hidden_weight": below.T @ self.embedding,
            "hidden_bias": below.sum(axis=0),
            "embedding": below @ self.hidden_weight,
        }
        for name, gradient in descents.items():
            setattr(self, name, getattr(self, name) - np.float32(learning_rate) * gradient)
        return loss

    def _hidden(self) -> FloatArray:
        hidden: FloatArray = np.maximum(self.embedding @ self.hidden_weight.T + self.hidden_bias, np.float32(0))
        return hidden

    def _output(self, hidden: FloatArray) -> FloatArray:
        output: FloatArray = hidden @ self.output_weight.T + self.output_bias
        return output


def margin_loss(prototypes: FloatArray, vectors: FloatArray, labels: ClassIds, *, margin: float) -> tuple[float, Wide]:
    """Cross-entropy of negative distances, with the margin added to the own class's; and its gradient by prototypes."""
    rows = np.arange(len(vectors))
    squares = squared_distances(vectors, prototypes)
    apart = squares > _SMALLEST_SQUARE
    distances = np.sqrt(squares, where=apart, out=np.zeros_like(squares))
    logits = -distances
    logits[rows, labels] -= margin
    logits -= logits.max(axis=1, keepdims=True)
    log_sums = np.log(np.exp(logits).sum(axis=1))
    loss = float((log_sums - logits[rows, labels]).mean())
    pull = np.exp(logits - log_sums[:, None])
    pull[rows, labels] -= 1.0
    # d loss / d distance is -pull / B, and d distance / d prototype the direction from the vector to the prototype
    strength = np.divide(-pull / len(vectors), distances, where=apart, out=np.zeros_like(pull))
    slope: Wide = strength.sum(axis=0)[:, None] * prototypes - strength.T @ vectors.astype(np.float64)
    return loss, slope
