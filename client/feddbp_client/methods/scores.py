"""How well every class fits an image under one rule of inference: what a prediction is made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from torch import Tensor

from feddbp_client.losses import normalized_distances, squared_distances
from feddbp_client.methods.received import ClassTable

NO_CLASS: Final = -1
"""A prediction where a rule has nothing to compare with yet; it is never right."""


class ScoreKind(StrEnum):
    """What a score is, but for its sign: distances are negated, so that the greatest score is always the best."""

    DISTANCE = "distance"
    """Between directions, from 0 to 2."""
    SQUARED_DISTANCE = "squared distance"
    LOGIT = "logit"


@dataclass(frozen=True, eq=False)
class Scores:
    """The class with the greatest score is the prediction."""

    values: Tensor
    """[n, C]; minus infinity for a class that cannot be predicted."""
    kind: ScoreKind

    @classmethod
    def of_logits(cls, logits: Tensor) -> Self:
        return cls(logits, ScoreKind.LOGIT)

    @classmethod
    def of_nearness(cls, z: Tensor, prototypes: ClassTable | None, *, classes: int, kind: ScoreKind) -> Self:
        """Features compared with prototypes; while there are none, no class can be predicted."""
        if prototypes is None:
            return cls(z.new_full((len(z), classes), -math.inf), kind)
        if kind is ScoreKind.DISTANCE:
            distances = normalized_distances(z, prototypes.directions)
        else:
            distances = squared_distances(z, prototypes.vectors)
        return cls(-distances.masked_fill(~prototypes.known, math.inf), kind)

    def classes(self) -> Tensor:
        """The predictions, int64 [n]; of equals the lower id, and NO_CLASS where nothing can be predicted."""
        nothing = self.values.amax(dim=1) == -math.inf
        return self.values.argmax(dim=1).masked_fill(nothing, NO_CLASS)
