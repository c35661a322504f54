"""Frozen features on the client: class sums of a fixed network, and beside them a head of its own.

Under differential privacy the sums leave the client with noise, see `feddbp_client.privacy`; the head, its loss and its
accuracy never do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from feddbp_client.losses import squared_distances
from feddbp_client.methods.base import Objective, Task
from feddbp_client.methods.plain import PlainModel
from feddbp_client.methods.received import ClassTable
from feddbp_client.methods.scores import ScoreKind, Scores
from feddbp_client.training.class_statistics import Images, evaluation
from feddbp_common.differential_privacy.mechanism import Release, Table, exact_table
from feddbp_common.methods.frozen import COUNTS, NOISE, SUMS, FrozenSettings
from feddbp_common.wire import Payload


class Frozen(PlainModel[FrozenSettings]):
    """The nearest global class mean predicts; the head learns by cross-entropy."""

    inference_rules = ("prototype", "head")

    _prototypes: ClassTable | None = None

    def __init__(
        self, *, backbone: nn.Module, make_head: Callable[[], nn.Module], settings: FrozenSettings, task: Task
    ) -> None:
        super().__init__(backbone=backbone, make_head=make_head, settings=settings, task=task)
        backbone.requires_grad_(requires_grad=False)
        self._noise = torch.zeros(task.classes)

    @property
    def inference(self) -> str:
        return self.settings.inference

    @property
    def reported_rules(self) -> tuple[str, ...]:
        return ("prototype",) if self.task.is_private else self.inference_rules

    def train(self, mode: bool = True) -> Self:
        """Leaves the network in eval mode: batch statistics would make a sample's feature depend on others."""
        super().train(mode)
        self.backbone.eval()
        return self

    def receive(self, payload: Payload, *, completed_rounds: int) -> None:
        self._prototypes = ClassTable.from_prototypes(payload.prototypes, classes=self.task.classes, device=self.device)
        self._noise = torch.tensor(payload.tensors.get(NOISE, np.zeros(self.task.classes, dtype=np.float32)))

    def objective(self, images: Tensor, labels: Tensor) -> Objective:
        with torch.no_grad():
            z = self.features(images)
        loss = self.cross_entropy(self.head(z), labels)
        return Objective(total=loss, terms={"ce": loss.detach()})

    def collect(self, images: Images, labels: Tensor, *, batch_size: int) -> Payload:
        if self.task.is_private:
            raise RuntimeError("under differential privacy no exact sums leave a client")
        release = Release.of(self.exact_table(images, labels, batch_size=batch_size))
        return Payload(tensors={SUMS: release.sums, COUNTS: release.counts})

    def exact_table(self, images: Images, labels: Tensor, *, batch_size: int) -> Table:
        """The client's sums and counts.

        Under differential privacy in batches of one: the last bits of a feature may depend on the size of its batch,
        and so on how many samples there are.
        """
        size, all_labels = 1 if self.task.is_private else batch_size, labels.cpu().numpy()
        table = np.zeros((self.task.classes, self.task.feature_dim + 1), dtype=np.int64)
        with evaluation(self):
            for start in range(0, len(images), size):
                batch = slice(start, start + size)
                features = self.features(images[batch].to(self.device)).float().cpu().numpy()
                table += exact_table(features, all_labels[batch], clip=self.task.clip_bound, classes=self.task.classes)
        return table

    def uploaded_features(self, images: Tensor) -> Tensor:
        """Clipped, in multiples of the bound."""
        z = self.features(images) / self.task.clip_bound
        norms: Tensor = torch.linalg.vector_norm(z, dim=1, keepdim=True)
        return z / norms.clamp_min(1.0)

    def scores(self, images: Tensor) -> Mapping[str, Scores]:
        z = self.features(images)
        return {"prototype": self._nearness(self.uploaded_features(images)), "head": Scores.of_logits(self.head(z))}

    def _nearness(self, clipped: Tensor) -> Scores:
        """As distances to the means without noise are expected to be: noise would move a mean of few samples away."""
        kind, found = ScoreKind.SQUARED_DISTANCE, self._prototypes
        if found is None:
            return Scores.of_nearness(clipped, None, classes=self.task.classes, kind=kind)
        distances = squared_distances(clipped, found.vectors) - self._noise.to(clipped.device)
        return Scores(-distances.masked_fill(~found.known, torch.inf), kind)
