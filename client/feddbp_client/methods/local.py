"""Training alone: backbone, head and cross-entropy, and nothing to tell anybody."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from feddbp_client.methods.base import LocalMethod, Objective, Task
from feddbp_client.statistics import evaluation
from feddbp_common.methods.local import LocalSettings
from feddbp_common.wire import Payload


class Local(LocalMethod[LocalSettings]):
    """One network with one head."""

    inference_rules = ("head",)

    def __init__(
        self, *, backbone: nn.Module, make_head: Callable[[], nn.Module], settings: LocalSettings, task: Task
    ) -> None:
        super().__init__(backbone=backbone, make_head=make_head, settings=settings, task=task)
        self.head = make_head()

    @property
    def inference(self) -> str:
        return "head"

    def receive(self, payload: Payload, *, completed_rounds: int) -> None:
        """Nothing comes."""

    def objective(self, images: Tensor, labels: Tensor) -> Objective:
        loss = F.cross_entropy(self.head(self.backbone(images)), labels)
        return Objective(total=loss, terms={"ce": loss.detach()})

    def collect(self, images: Tensor, labels: Tensor, *, batch_size: int) -> Payload:
        return Payload()

    def predict(self, images: Tensor) -> Mapping[str, Tensor]:
        with evaluation(self):
            return {"head": self.head(self.backbone(images)).argmax(dim=1)}
