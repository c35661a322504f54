"""FedLFP on the client: contrast within the batch, and alignment with prototypes without class labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feddbp_client.losses import directions, squared_distances
from feddbp_client.methods.base import Objective, Task
from feddbp_client.methods.collecting import ClassCollector
from feddbp_client.methods.plain import PlainModel
from feddbp_client.training.class_statistics import Images, evaluation
from feddbp_common.methods.fedlfp import CONFIDENCE, COUNTS, GLOBAL_PROTOTYPES, LOCAL_PROTOTYPES, FedLFPSettings
from feddbp_common.wire import Payload


class FedLFP(PlainModel[FedLFPSettings]):
    """Compares directions of features; the head gets the features unscaled."""

    def __init__(
        self, *, backbone: nn.Module, make_head: Callable[[], nn.Module], settings: FedLFPSettings, task: Task
    ) -> None:
        super().__init__(backbone=backbone, make_head=make_head, settings=settings, task=task)
        self._features = ClassCollector(settings.collect, classes=task.classes, width=task.feature_dim)
        self._distance = Distance(settings.distance, settings.rho)
        weight = settings.lambda_contrast
        self._weights = {"contrast": weight, "pull_samples": weight, "pull_classes": weight}
        self._prototypes: Tensor | None = None

    def receive(self, payload: Payload, *, completed_rounds: int) -> None:
        received = payload.tensors.get(GLOBAL_PROTOTYPES)
        self._prototypes = None if received is None else torch.tensor(received, device=self.device)

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        self._features.begin_epoch(epoch)

    def objective(self, images: Tensor, labels: Tensor) -> Objective:
        z = self.features(images)
        self._features.observe(z, labels)
        terms = {"ce": self.cross_entropy(self.head(z), labels)}
        if self._prototypes is not None:
            terms |= self._contrasts(z, labels, self._prototypes)
        return Objective.weighted(terms, self._weights)

    def collect(self, images: Images, labels: Tensor, *, batch_size: int) -> Payload:
        with evaluation(self):
            found = self._features.collect(
                lambda batch, _: self.features(batch), images, labels, batch_size=batch_size, device=self.device
            )
            prototypes = directions(torch.from_numpy(found.means)).float()
            answers = self.head(prototypes.to(self.device)).float().softmax(dim=1)
        rows, confidence = prototypes.numpy(), answers.amax(dim=1).cpu().numpy()
        # sorted by values: class order would reveal classes, and a shuffle could be undone by all who know the seed
        order = np.lexsort((found.counts, confidence, *rows.T))
        return Payload(
            tensors={
                LOCAL_PROTOTYPES: rows[order],
                CONFIDENCE: confidence[order].astype(np.float32),
                COUNTS: found.counts[order],
            }
        )

    def _contrasts(self, z: Tensor, labels: Tensor, prototypes: Tensor) -> dict[str, Tensor]:
        unit = directions(z)
        means, present = class_directions(z, labels, self.task.classes)
        of_classes = pull_to_prototypes(means, prototypes, self._distance)
        return {
            "contrast": supervised_contrast(unit, labels, self.settings.tau),
            "pull_samples": pull_to_prototypes(unit, prototypes, self._distance).mean(),
            "pull_classes": (of_classes * present).sum() / present.sum(),
        }


@dataclass(frozen=True)
class Distance:
    """Distance of directions to prototypes, from the vectors or from their products."""

    form: Literal["squared", "exponential"]
    rho: float

    def __call__(self, vectors: Tensor, prototypes: Tensor, products: Tensor) -> Tensor:
        if self.form == "squared":
            return squared_distances(vectors, prototypes)
        return torch.exp(-self.rho * products)


def supervised_contrast(unit: Tensor, labels: Tensor, tau: float) -> Tensor:
    """Supervised contrastive loss over the batch; a sample that is alone in its class adds zero."""
    itself = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    positive = (labels.unsqueeze(1) == labels) & ~itself
    similarities = (unit @ unit.T) / tau
    # finite, so that a batch of one sample gives no NaN
    others = similarities.masked_fill(itself, torch.finfo(similarities.dtype).min)
    log_shares = (similarities - others.logsumexp(dim=1, keepdim=True)).masked_fill(~positive, 0.0)
    return (-log_shares.sum(dim=1) / positive.sum(dim=1).clamp_min(1)).mean()


def pull_to_prototypes(unit: Tensor, prototypes: Tensor, distance: Distance) -> Tensor:
    """Per vector, its mean distance to all prototypes, weighted by the softmax of their similarities."""
    prototypes = prototypes.to(unit.dtype)
    products = unit @ prototypes.T
    return (distance(unit, prototypes, products) * products.softmax(dim=1)).sum(dim=1)


def class_directions(z: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The direction of each class's mean in the batch, [C, d], and a mask of the classes in the batch."""
    members = F.one_hot(labels, classes).to(z.dtype)
    # a sum has the direction of the mean; as a matrix product it is deterministic on a GPU, unlike a scatter
    return directions(members.T @ z), members.sum(dim=0) > 0
