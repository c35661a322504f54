"""FedDBP beside a guide: a small network common to all clients, trained by cross-entropy alone and averaged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar

from torch import Tensor, nn

from feddbp_client.methods.base import Objective, Task
from feddbp_client.methods.feddbp import FedDBP
from feddbp_client.methods.guide_model import GuideModel
from feddbp_client.methods.scores import Scores
from feddbp_client.training.class_statistics import Images
from feddbp_common.methods.feddbp import FedDBPSettings
from feddbp_common.wire import Payload


def feddbp(*, backbone: nn.Module, make_head: Callable[[], nn.Module], settings: FedDBPSettings, task: Task) -> FedDBP:
    """The client's half of FedDBP, with a guide if the run has one."""
    kind = GuidedFedDBP if settings.guided else FedDBP
    return kind(backbone=backbone, make_head=make_head, settings=settings, task=task)


class GuidedFedDBP(FedDBP):
    """Two networks with a loss each, and a decision by both.

    The losses are separate: with one loss of the sum of their logits, the faster network leaves the other little to
    learn, and the guide, which carries what clients learn from each other, stays weak.
    """

    inference_rules: ClassVar[tuple[str, ...]] = (*FedDBP.inference_rules, "guide", "both")

    def __init__(
        self, *, backbone: nn.Module, make_head: Callable[[], nn.Module], settings: FedDBPSettings, task: Task
    ) -> None:
        super().__init__(backbone=backbone, make_head=make_head, settings=settings, task=task)
        self.guide = GuideModel(task)

    def receive(self, payload: Payload, *, completed_rounds: int) -> None:
        super().receive(payload, completed_rounds=completed_rounds)
        if payload.tensors:
            self.guide.load(payload.tensors)

    def objective(self, images: Tensor, labels: Tensor) -> Objective:
        own = super().objective(images, labels)
        ce_guide = self.cross_entropy(self._guide_logits(images), labels)
        return Objective(total=own.total + ce_guide, terms={**own.terms, "ce_guide": ce_guide.detach()})

    def collect(self, images: Images, labels: Tensor, *, batch_size: int) -> Payload:
        return replace(super().collect(images, labels, batch_size=batch_size), tensors=self.guide.tensors())

    def scores(self, images: Tensor) -> Mapping[str, Scores]:
        own, guide = super().scores(images), self._guide_logits(images)
        both = own["head"].values.log_softmax(dim=1) + guide.log_softmax(dim=1)
        return {**own, "guide": Scores.of_logits(guide), "both": Scores.of_logits(both)}

    def _guide_logits(self, images: Tensor) -> Tensor:
        logits: Tensor = self.guide.head(self.guide.body(images))
        return logits
