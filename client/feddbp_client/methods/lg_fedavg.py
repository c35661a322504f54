"""LG-FedAvg on the client: cross-entropy with the shared head."""

from __future__ import annotations

from torch import Tensor

from feddbp_client.methods.base import Objective
from feddbp_client.methods.shared_head import SharedHeadModel
from feddbp_common.methods.lg_fedavg import LGFedAvgSettings


class LGFedAvg(SharedHeadModel[LGFedAvgSettings]):
    """The loss is that of local training; only the head is shared."""

    def objective(self, images: Tensor, labels: Tensor) -> Objective:
        return Objective.weighted({"ce": self.cross_entropy(self.logits(images), labels)}, {})
