"""On the client: the loss, and what is uploaded after training."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from confmean.contract import CONFIDENCE, ConfMeanSettings
from feddbp_client.losses import prototype_alignment
from feddbp_client.methods.prototype_model import PrototypeModel
from feddbp_client.methods.received import ClassTable
from feddbp_client.training.class_statistics import Images, class_means, evaluation
from feddbp_common.wire import Payload


class ConfMean(PrototypeModel[ConfMeanSettings]):
    """`PrototypeModel` brings the backbone, a head that predicts, cross-entropy, and class means as the upload."""

    _prototypes: ClassTable | None = None  # of the server; not trained, so no parameter

    def receive(self, payload: Payload, *, completed_rounds: int) -> None:
        self._prototypes = ClassTable.from_prototypes(payload.prototypes, classes=self.task.classes, device=self.device)

    def terms(self, z: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
        if self._prototypes is None:  # in the first round the server has none yet
            return {}
        return {"pull": prototype_alignment(z, self._prototypes.vectors, labels, self._prototypes.known, "mean")}

    def weights(self) -> Mapping[str, float]:
        return {"pull": self.settings.pull}

    def collect(self, images: Images, labels: Tensor, *, batch_size: int) -> Payload:
        """Prototypes, and for each class the mean probability the head gives to it on its own samples."""
        prototypes = super().collect(images, labels, batch_size=batch_size).prototypes
        with evaluation(self):  # no dropout, and no update of batch statistics
            found = class_means(
                self._own_class_probability, images, labels, width=1, batch_size=batch_size, device=self.device
            )
        confidence = np.zeros(self.task.classes, dtype=np.float32)
        # a mean of probabilities may be rounded to just above 1, which the upload rules refuse
        confidence[found.class_ids] = found.means[:, 0].clip(0.0, 1.0)
        return Payload(prototypes=prototypes, tensors={CONFIDENCE: confidence})

    def _own_class_probability(self, images: Tensor, labels: Tensor) -> Tensor:
        return self.logits(images).softmax(dim=1).gather(1, labels.unsqueeze(1))
