"""The content of an upload or a download, as numpy arrays."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]
ChannelArray = npt.NDArray[np.uint16]
AnyArray = npt.NDArray[Any]

PROTOTYPES = "prototypes"
FISHER = "fisher"
TENSORS = "tensors"

Norms = Mapping[str, float]
"""The norm of each part of a payload: the longest prototype, and all real tensors together."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PrototypeSet:
    """One vector per class, rows in ascending order of class id."""

    class_ids: IntArray
    vectors: FloatArray
    counts: IntArray | None = None

    def __len__(self) -> int:
        return len(self.class_ids)

    def rows(self, chosen: npt.NDArray[np.bool_]) -> PrototypeSet:
        """The set with the marked rows alone."""
        counts = None if self.counts is None else self.counts[chosen]
        return PrototypeSet(class_ids=self.class_ids[chosen], vectors=self.vectors[chosen], counts=counts)


@dataclass(frozen=True, eq=False)
class FisherScores:
    """Importance of every channel; row i belongs to row i of the prototypes in the same payload."""

    scores: FloatArray


@dataclass(frozen=True, eq=False)
class TopChannels:
    """Only the most important channels of each class, the largest score first."""

    channels: ChannelArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Payload:
    """An upload or a download. May be empty: an empty upload reports that the round is done."""

    prototypes: PrototypeSet | None = None
    fisher: FisherScores | TopChannels | None = None
    tensors: Mapping[str, AnyArray] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for _, array in self.arrays())

    def norms(self) -> Norms:
        """The norms by which payloads are compared; a part that is empty has none."""
        norms = {}
        if self.prototypes is not None and len(self.prototypes):
            norms[PROTOTYPES] = float(row_norms(self.prototypes.vectors).max())
        reals = [tensor for tensor in self.tensors.values() if tensor.dtype == np.float32]
        if reals:
            norms[TENSORS] = math.sqrt(sum(float(np.square(tensor.astype(np.float64)).sum()) for tensor in reals))
        return norms

    def with_classes(self, chosen: npt.NDArray[np.bool_]) -> Payload:
        """The payload with the marked rows of its prototypes, and of what belongs to them."""
        if self.prototypes is None:
            return self
        fisher = self.fisher
        if isinstance(fisher, FisherScores):
            fisher = FisherScores(fisher.scores[chosen])
        elif isinstance(fisher, TopChannels):
            fisher = TopChannels(fisher.channels[chosen])
        return Payload(prototypes=self.prototypes.rows(chosen), fisher=fisher, tensors=self.tensors)

    def arrays(self) -> Iterator[tuple[str, AnyArray]]:
        """Yields all tensors in the order of their bytes in the body."""
        if self.prototypes is not None:
            yield PROTOTYPES, self.prototypes.vectors
        if isinstance(self.fisher, FisherScores):
            yield FISHER, self.fisher.scores
        elif isinstance(self.fisher, TopChannels):
            yield FISHER, self.fisher.channels
        yield from self.tensors.items()


def row_norms(vectors: AnyArray) -> npt.NDArray[np.float64]:
    # float64, and a new array: the result depends neither on how the rows lie in memory nor on how small they are
    wide = vectors.astype(np.float64)
    norms: npt.NDArray[np.float64] = np.sqrt(np.einsum("ij,ij->i", wide, wide))
    return norms
