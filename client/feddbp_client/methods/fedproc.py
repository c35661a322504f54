"""FedProc on the client: contrast of features with prototypes, replaced by cross-entropy over the rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from feddbp_client.losses import angular_contrast, directions
from feddbp_client.methods.prototype_model import PrototypeModel
from feddbp_common.methods.fedproc import FedProcSettings
from feddbp_common.wire import Payload, PrototypeSet


@dataclass(frozen=True, eq=False)
class _Contrast:
    """The prototypes that a round's features are contrasted with, and the weight of cross-entropy."""

    directions: Tensor
    classes: Tensor
    ce_weight: float


class FedProc(PrototypeModel[FedProcSettings]):
    """a * cross-entropy + (1 - a) * contrast, where a grows from 0 to 1 over the rounds; the head predicts.

    The head gets raw features, which are scaled to length one only for the contrast and the upload; in the original it
    gets a normalised projection.
    """

    sends_counts = True

    _contrast: _Contrast | None = None

    def receive(self, payload: Payload, *, completed_rounds: int) -> None:
        received = payload.prototypes
        self._contrast = (
            self._contrast_with(received, completed_rounds) if received is not None and len(received) else None
        )

    def terms(self, z: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
        if self._contrast is None:
            return {}
        # the method has no temperature
        return {"gpc": angular_contrast(z, self._contrast.directions, self._contrast.classes, labels, tau=1.0)}

    def weights(self) -> Mapping[str, float]:
        if self._contrast is None:
            return {}
        return {"ce": self._contrast.ce_weight, "gpc": 1.0 - self._contrast.ce_weight}

    def collected(self, z: Tensor) -> Tensor:
        return directions(z)

    def _contrast_with(self, received: PrototypeSet, completed_rounds: int) -> _Contrast:
        rounds = self.settings.schedule_rounds or self.task.rounds
        return _Contrast(
            directions=directions(torch.tensor(received.vectors, device=self.device)),
            classes=torch.tensor(received.class_ids, dtype=torch.int64, device=self.device),
            ce_weight=min(1.0, completed_rounds / rounds),
        )
