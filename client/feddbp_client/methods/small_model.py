"""The small network that FedKD and FedMRL share between clients."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from feddbp_client.methods.base import Task
from feddbp_client.methods.shared_model import SharedModel
from feddbp_client.models import build_backbone
from feddbp_common.methods.small_model import SMALL_MODEL
from feddbp_common.seeding import derive_seed


class SmallModel(SharedModel):
    """The four-layer CNN with its feature pooled to `feature_dim`, and a linear head."""

    def __init__(self, task: Task, *, feature_dim: int) -> None:
        super().__init__(task)
        # Forked: the client's own weights must not depend on whether there is a shared model.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive_seed(task.seed, "small model"))
            self.body = build_backbone("cnn4", task.image_shape, feature_dim=feature_dim)
            self.head = nn.Linear(feature_dim, task.classes)

    def weights(self) -> dict[str, Tensor]:
        return dict(zip(SMALL_MODEL, self.parameters(), strict=True))
