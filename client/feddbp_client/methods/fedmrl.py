"""FedMRL on the client: own and shared features in one projection, whose first channels also predict alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from feddbp_client.methods.base import Objective, Task
from feddbp_client.methods.plain import PlainModel
from feddbp_client.methods.scores import Scores
from feddbp_client.methods.small_model import SmallModel
from feddbp_client.training.class_statistics import Images
from feddbp_common.methods.fedmrl import FedMRLSettings
from feddbp_common.wire import Payload


class FedMRL(PlainModel[FedMRLSettings]):
    """The own model and the projector stay on the client; the small model is exchanged."""

    inference_rules = ("head", "small")

    def __init__(
        self, *, backbone: nn.Module, make_head: Callable[[], nn.Module], settings: FedMRLSettings, task: Task
    ) -> None:
        super().__init__(backbone=backbone, make_head=make_head, settings=settings, task=task)
        self.small = SmallModel(task, feature_dim=settings.small_dim)
        self.projector = nn.Linear(settings.small_dim + task.feature_dim, task.feature_dim)

    def receive(self, payload: Payload, *, completed_rounds: int) -> None:
        if payload.tensors:
            self.small.load(payload.tensors)

    def features(self, images: Tensor) -> Tensor:
        """r, the joint representation, [B, d]; the shared feature is first in its input."""
        r: Tensor = self.projector(torch.cat([self.small.body(images), self.backbone(images)], dim=1))
        return r

    def objective(self, images: Tensor, labels: Tensor) -> Objective:
        r = self.features(images)
        return Objective.weighted(
            {"ce": self.cross_entropy(self.head(r), labels), "ce_small": self.cross_entropy(self._coarse(r), labels)},
            {},
        )

    def clip_gradients(self) -> None:
        if self.settings.max_grad_norm:
            nn.utils.clip_grad_norm_(self.parameters(), self.settings.max_grad_norm)

    def collect(self, images: Images, labels: Tensor, *, batch_size: int) -> Payload:
        return Payload(tensors=self.small.tensors())

    def scores(self, images: Tensor) -> Mapping[str, Scores]:
        r = self.features(images)
        return {"head": Scores.of_logits(self.head(r)), "small": Scores.of_logits(self._coarse(r))}

    def _coarse(self, r: Tensor) -> Tensor:
        """o_g: the shared head on the first channels."""
        logits: Tensor = self.small.head(r[:, : self.settings.small_dim])
        return logits
