"""Scores of every class for an image under one inference rule, and the prediction made of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from torch import Tensor

from feddbp_client.losses import normalized_distances, squared_distances
from feddbp_client.methods.received import ClassTable

NO_CLASS: Final = -1
"""The prediction of a rule without prototypes; it counts as wrong."""


class ScoreKind(StrEnum):
    """The kind of a score; distances are negated, so that the greatest score is always the best."""

    DISTANCE = "distance"
    """Distance between directions, from 0 to 2."""
    SQUARED_DISTANCE = "squared distance"
    LOGIT = "logit"


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of a batch; the class with the greatest score is the prediction."""

    values: Tensor
    """[n, C]; minus infinity for a class that cannot be predicted."""
    kind: ScoreKind

    @classmethod
    def of_logits(cls, logits: Tensor) -> Self:
        return cls(logits, ScoreKind.LOGIT)

    @classmethod
    def of_nearness(cls, z: Tensor, prototypes: ClassTable | None, *, classes: int, kind: ScoreKind) -> Self:
        """Negated distances of features to prototypes; without prototypes no class can be predicted."""
        if prototypes is None:
            return cls(z.new_full((len(z), classes), -math.inf), kind)
        if kind is ScoreKind.DISTANCE:
            distances = normalized_distances(z, prototypes.directions)
        else:
            distances = squared_distances(z, prototypes.vectors)
        return cls(-distances.masked_fill(~prototypes.known, math.inf), kind)

    def classes(self) -> Tensor:
        """The predictions, int64 [n]: the lower id of equal scores, NO_CLASS where no class can be predicted."""
        undecided = self.values.amax(dim=1) == -math.inf
        return self.values.argmax(dim=1).masked_fill(undecided, NO_CLASS)
