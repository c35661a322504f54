"""The network that all clients of a run have in common, with its head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from feddbp_client.methods.base import Task
from feddbp_client.methods.shared_model import SharedModel
from feddbp_client.models.guide import GuideBody
from feddbp_common.methods.guide_network import GUIDES
from feddbp_common.seeding import derive_seed


class GuideModel(SharedModel):
    """The run's guide, with the same first weights on all clients."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        network = GUIDES[task.guide]
        # Forked: the client's own weights must not depend on whether there is a guide.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive_seed(task.seed, "guide"))
            self.body = GuideBody(network, task.image_shape)
            self.head = nn.Linear(network.width, task.classes)

    def weights(self) -> dict[str, Tensor]:
        head = {f"head.{name}": parameter for name, parameter in self.head.named_parameters()}
        return {**dict(self.body.named_parameters()), **head}
