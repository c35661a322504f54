"""Local training without exchange: backbone, head and cross-entropy, and an empty upload."""

from __future__ import annotations

from torch import Tensor

from feddbp_client.methods.base import Objective
from feddbp_client.methods.plain import PlainModel
from feddbp_client.training.class_statistics import Images
from feddbp_common.methods.local import LocalSettings
from feddbp_common.wire import Payload


class Local(PlainModel[LocalSettings]):
    """Trains by cross-entropy and uploads nothing."""

    def objective(self, images: Tensor, labels: Tensor) -> Objective:
        loss = self.cross_entropy(self.logits(images), labels)
        return Objective(total=loss, terms={"ce": loss.detach()})

    def collect(self, images: Images, labels: Tensor, *, batch_size: int) -> Payload:
        return Payload()
