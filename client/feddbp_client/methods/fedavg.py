"""FedAvg on the client: cross-entropy with the common network, all of which is exchanged."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from feddbp_client.methods.base import Objective, Task
from feddbp_client.methods.guide_model import GuideModel
from feddbp_client.methods.plain import PlainModel
from feddbp_client.training.class_statistics import Images
from feddbp_common.methods.fedavg import FedAvgSettings
from feddbp_common.wire import Payload


class FedAvg(PlainModel[FedAvgSettings]):
    """Trains the run's guide in place of a network of its own; it starts every round as the clients' mean."""

    def __init__(
        self, *, backbone: nn.Module, make_head: Callable[[], nn.Module], settings: FedAvgSettings, task: Task
    ) -> None:
        guide = GuideModel(task)
        super().__init__(backbone=guide.body, make_head=lambda: guide.head, settings=settings, task=task)
        self._guide = (guide,)  # in a tuple, or its modules would be registered twice

    def receive(self, payload: Payload, *, completed_rounds: int) -> None:
        if payload.tensors:
            self._guide[0].load(payload.tensors)

    def objective(self, images: Tensor, labels: Tensor) -> Objective:
        return Objective.weighted({"ce": self.cross_entropy(self.logits(images), labels)}, {})

    def collect(self, images: Images, labels: Tensor, *, batch_size: int) -> Payload:
        return Payload(tensors=self._guide[0].tensors())
