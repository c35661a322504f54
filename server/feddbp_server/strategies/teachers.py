"""The heads that FedGen's generator is trained against: they classify generated features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from feddbp_common.methods.linear_head import HEAD_BIAS, HEAD_WEIGHT
from feddbp_common.wire.payload import AnyArray, FloatArray
from feddbp_server.strategies.numerics import Wide

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Teachers:
    """K linear heads, frozen. They stay in float32, since there may be a thousand of them."""

    weights: FloatArray
    """[K, C, d]."""
    biases: FloatArray
    """[K, C]."""
    shares: Wide
    """[K, C], the weight of head k for features of class c."""

    @classmethod
    def one(cls, head: Mapping[str, AnyArray]) -> Self:
        """The mean of all heads, whose output is their mean output, since they are linear."""
        weights, biases = head[HEAD_WEIGHT][None], head[HEAD_BIAS][None]
        return cls(weights, biases, np.ones(biases.shape))

    @classmethod
    def many(cls, heads: Sequence[Mapping[str, AnyArray]], label_counts: Sequence[Sequence[int]]) -> Self:
        """Every client's head, weighted for each class by the client's share of that class's samples."""
        counts = np.array(label_counts, dtype=np.float64)
        return cls(
            np.stack([head[HEAD_WEIGHT] for head in heads]),
            np.stack([head[HEAD_BIAS] for head in heads]),
            counts / np.maximum(counts.sum(axis=0), 1.0),
        )

    def loss_and_gradient(self, features: Wide, labels: Labels) -> tuple[float, Wide]:
        """Cross-entropy of all heads' outputs, averaged over the batch; and its gradient by features."""
        rows = np.arange(len(labels))
        outputs = features.astype(np.float32) @ self.weights.transpose(0, 2, 1) + self.biases[:, None]
        logits = outputs.astype(np.float64)
        logits -= logits.max(axis=2, keepdims=True)
        log_sums = np.log(np.exp(logits).sum(axis=2))
        importance = self.shares[:, labels] / len(labels)
        loss = float((importance * (log_sums - logits[:, rows, labels])).sum())
        surplus = np.exp(logits - log_sums[:, :, None])
        surplus[:, rows, labels] -= 1.0
        pull = (surplus * importance[:, :, None]).astype(np.float32)
        slope: Wide = (pull @ self.weights).sum(axis=0, dtype=np.float64)
        return loss, slope
