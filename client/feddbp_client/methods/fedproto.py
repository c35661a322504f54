"""FedProto on the client: aligns features with the prototype of their class; the nearest prototype predicts."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from feddbp_client.losses import alignment
from feddbp_client.methods.prototype_model import PrototypeModel
from feddbp_client.methods.received import ClassTable
from feddbp_client.methods.scores import Scores
from feddbp_common.methods.fedproto import FedProtoSettings
from feddbp_common.wire import Payload


class FedProto(PrototypeModel[FedProtoSettings]):
    """Cross-entropy plus lambda times the distance to the prototype of the sample's class."""

    inference_rules = ("prototype", "head")

    _prototypes: ClassTable | None = None

    @property
    def inference(self) -> str:
        return self.settings.inference

    def receive(self, payload: Payload, *, completed_rounds: int) -> None:
        self._prototypes = ClassTable.from_prototypes(payload.prototypes, classes=self.task.classes, device=self.device)

    def terms(self, z: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
        if self._prototypes is None:
            return {}
        vectors, known = self._prototypes.vectors, self._prototypes.known
        return {"proto": alignment(z, vectors, labels, known, self.settings.distance)}

    def weights(self) -> Mapping[str, float]:
        return {"proto": self.settings.lambda_proto}

    def scores(self, images: Tensor) -> Mapping[str, Scores]:
        return self.scores_by_prototype(images, self._prototypes)
