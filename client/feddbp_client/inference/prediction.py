"""What a trained client says of one image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import torch
from torch import Tensor

from feddbp_client.methods.scores import ScoreKind

Measure: TypeAlias = Literal["distance", "squared distance", "probability"]
_MEASURES: Final[dict[ScoreKind, Measure]] = {
    ScoreKind.DISTANCE: "distance",
    ScoreKind.SQUARED_DISTANCE: "squared distance",
    ScoreKind.LOGIT: "probability",
}


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A class an image may belong to."""

    class_id: int
    name: str
    value: float
    """How far its prototype is, or how probable it is: what the prediction's `measure` says."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The classes an image may belong to, the likeliest first."""

    measure: Measure
    candidates: tuple[Candidate, ...]
    """There is always one. A class the client knows no prototype of is not among them."""

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    @property
    def name(self) -> str:
        """Of the class that is predicted."""
        return self.best.name


def prediction_of(scores: Tensor, kind: ScoreKind, class_names: tuple[str, ...], *, top: int | None) -> Prediction:
    """The best `top` classes of a row of scores [C], or all that can be predicted."""
    row = scores.cpu().double()  # in this order: Apple's GPUs have no float64
    values = row.softmax(dim=0) if kind is ScoreKind.LOGIT else -row
    # stable: of equals the lower id comes first, as it does in a method's own predictions
    order = torch.sort(row, descending=True, stable=True).indices[:top]
    return Prediction(
        measure=_MEASURES[kind],
        candidates=tuple(
            Candidate(class_id=class_id, name=class_names[class_id], value=float(values[class_id]))
            for class_id in order.tolist()
            if row[class_id] != -torch.inf
        ),
    )
