"""FedDBP beside a guide: a small network common to all clients, averaged, from which the own network learns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feddbp_client.methods.base import Objective, Task
from feddbp_client.methods.feddbp import FedDBP
from feddbp_client.methods.guide_model import GuideModel
from feddbp_client.methods.scores import Scores
from feddbp_client.training.class_statistics import Images
from feddbp_common.methods.feddbp import FedDBPSettings
from feddbp_common.wire import Payload

_UNSEEN_SAMPLES: Final = 0.1
"""Samples of a class that a client has none of, as its prior counts them: unlikely, but not impossible."""
_LARGEST_GRADIENT: Final = 100.0
"""Norm to which a gradient of the own network is clipped; ordinary ones are smaller. A client with nearly all samples
of one class has larger ones, since the guide pulls all of them to the same class, and would diverge."""


def feddbp(*, backbone: nn.Module, make_head: Callable[[], nn.Module], settings: FedDBPSettings, task: Task) -> FedDBP:
    """The client's half of FedDBP, with a guide if the run has one."""
    kind: type[FedDBP] = FedDBP
    if settings.guided:
        kind = GuidedFedDBP if settings.exchanges_prototypes else GuidedAlone
    return kind(backbone=backbone, make_head=make_head, settings=settings, task=task)


class GuidedFedDBP(FedDBP):
    """Two networks with a loss each, and a decision by both; the own network also imitates the guide.

    The losses are separate: with one loss of the sum of their logits, the faster network leaves the other little to
    learn, and the guide, which carries what clients learn from each other, stays weak.

    The guide's logits leave out how often the client has which class (`guide_prior`): the client's log frequencies are
    added to them wherever they are compared with labels. So clients with different classes train the same function of
    an image, and averaging their weights does not undo what each has learnt about its own mixture of classes.
    """

    inference_rules: ClassVar[tuple[str, ...]] = (*FedDBP.inference_rules, "guide", "both")

    def __init__(
        self, *, backbone: nn.Module, make_head: Callable[[], nn.Module], settings: FedDBPSettings, task: Task
    ) -> None:
        super().__init__(backbone=backbone, make_head=make_head, settings=settings, task=task)
        self.guide = GuideModel(task)
        self.log_prior: Tensor
        self.register_buffer("log_prior", torch.zeros(task.classes))
        self._has_choice = True
        """Whether the client has more than one class: of one, the guide has nothing to teach, and both losses together
        drive the own network's logits apart until training diverges."""

    def set_label_counts(self, counts: Sequence[int]) -> None:
        self._has_choice = sum(count > 0 for count in counts) > 1
        if self.settings.guide_prior == "client":
            samples = torch.tensor(counts, dtype=torch.float64).clamp_min(_UNSEEN_SAMPLES)
            self.log_prior.copy_((samples / samples.sum()).log())

    def receive(self, payload: Payload, *, completed_rounds: int) -> None:
        super().receive(payload, completed_rounds=completed_rounds)
        if payload.tensors:
            self.guide.load(payload.tensors)

    def objective(self, images: Tensor, labels: Tensor) -> Objective:
        guide = self._guide_logits(images)
        passed = self._pass(images)
        terms = {**self._terms(passed, labels), "ce_guide": self.cross_entropy(guide, labels)}
        if self.settings.distillation and self._has_choice:
            terms["distillation"] = distillation(passed.logits, guide.detach(), self.settings.temperature)
        return Objective.weighted(terms, {**self._weights, "distillation": self.settings.distillation})

    def clip_gradients(self) -> None:
        super().clip_gradients()
        own = [parameter for name, parameter in self.named_parameters() if not name.startswith("guide.")]
        nn.utils.clip_grad_norm_(own, _LARGEST_GRADIENT)

    def collect(self, images: Images, labels: Tensor, *, batch_size: int) -> Payload:
        return replace(super().collect(images, labels, batch_size=batch_size), tensors=self.guide.tensors())

    def scores(self, images: Tensor) -> Mapping[str, Scores]:
        own, guide = super().scores(images), self._guide_logits(images)
        # a mean, not a sum: its softmax is the confidence that `predict` shows
        share = self.settings.guide_weight / (1 + self.settings.guide_weight)
        both = torch.lerp(own["head"].values.log_softmax(dim=1), guide.log_softmax(dim=1), share)
        return {**own, "guide": Scores.of_logits(guide), "both": Scores.of_logits(both)}

    def _guide_logits(self, images: Tensor) -> Tensor:
        logits: Tensor = self.guide.head(self.guide.body(images)) + self.log_prior
        return logits


class GuidedAlone(GuidedFedDBP):
    """A guide without prototypes: nothing is aligned with them, so they are neither collected nor exchanged."""

    inference_rules: ClassVar[tuple[str, ...]] = ("head", "guide", "both")

    def collect(self, images: Images, labels: Tensor, *, batch_size: int) -> Payload:
        return Payload(tensors=self.guide.tensors())

    def scores(self, images: Tensor) -> Mapping[str, Scores]:
        found = super().scores(images)
        return {rule: found[rule] for rule in self.inference_rules}


def distillation(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL divergence of every branch's softmax from the teacher's, both softened, summed over branches.

    The square of the temperature keeps its gradient as large as that of cross-entropy.
    """
    target = (teacher / temperature).softmax(dim=1).unsqueeze(1).expand_as(logits)
    softened = (logits / temperature).log_softmax(dim=2)
    return temperature**2 * F.kl_div(softened, target, reduction="sum") / len(logits)
