"""FedKD on the client: the own model (mentor) and the shared one (mentee) train on the data and on each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from feddbp_client.methods.anchored_model import AnchoredModel
from feddbp_client.methods.base import Objective, Task
from feddbp_client.methods.plain import PlainModel
from feddbp_client.methods.scores import Scores
from feddbp_client.methods.small_model import SmallModel
from feddbp_client.training.class_statistics import Images
from feddbp_common.methods.fedkd import ROUND, FedKDSettings
from feddbp_common.wire import Payload
from feddbp_common.wire.svd import compress, decompress

_SMALLEST_DIVISOR: Final = 1e-6
"""Lower limit of a divisor: the cross-entropy of a client that fits its few samples perfectly is zero."""


class FedKD(PlainModel[FedKDSettings]):
    """Mentor and W stay on the client; the mentee starts every round as the clients' mean."""

    inference_rules = ("head", "mentee")

    def __init__(
        self, *, backbone: nn.Module, make_head: Callable[[], nn.Module], settings: FedKDSettings, task: Task
    ) -> None:
        super().__init__(backbone=backbone, make_head=make_head, settings=settings, task=task)
        kind = AnchoredModel if settings.target == "update" else SmallModel
        self.mentee = kind(task, feature_dim=task.feature_dim)
        self.alignment = nn.Linear(task.feature_dim, task.feature_dim, bias=False)
        """W."""
        self._round = 0

    def receive(self, payload: Payload, *, completed_rounds: int) -> None:
        self._round = completed_rounds
        if isinstance(self.mentee, AnchoredModel):
            self.mentee.follow(payload.tensors)
        elif payload.tensors:
            self.mentee.load(decompress(payload.tensors))

    def objective(self, images: Tensor, labels: Tensor) -> Objective:
        z, z_mentee = self.features(images), self.mentee.body(images)
        o, o_mentee = self.head(z), self.mentee.head(z_mentee)
        ce_mentor, ce_mentee = self.cross_entropy(o, labels), self.cross_entropy(o_mentee, labels)
        kl, features = _both_divergences(o, o_mentee), F.mse_loss(z, self.alignment(z_mentee))
        certainty = (ce_mentor + ce_mentee).clamp_min(_SMALLEST_DIVISOR)
        terms = {"ce_mentor": ce_mentor, "ce_mentee": ce_mentee, "kl": kl, "features": features}
        return Objective(
            total=ce_mentor + ce_mentee + (kl + 2 * features) / certainty,
            terms={name: term.detach() for name, term in terms.items()},
        )

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        own = [*self.backbone.parameters(), *self.head.parameters(), *self.alignment.parameters()]
        return [
            {"params": own, "lr": learning_rate},
            {"params": list(self.mentee.parameters()), "lr": self.settings.mentee_learning_rate or learning_rate},
        ]

    def clip_gradients(self) -> None:
        mentor = [*self.backbone.parameters(), *self.head.parameters()]
        for part in (mentor, self.mentee.parameters(), self.alignment.parameters()):
            nn.utils.clip_grad_norm_(part, self.settings.max_grad_norm)

    def collect(self, images: Images, labels: Tensor, *, batch_size: int) -> Payload:
        energy = self.settings.energy(self._round, self.task.rounds)
        if not isinstance(self.mentee, AnchoredModel):
            return Payload(tensors=compress(self.mentee.tensors(), energy))
        number = np.array([self._round], dtype=np.int32)
        return Payload(tensors={ROUND: number, **compress(self.mentee.drop_anchor(), energy)})

    def scores(self, images: Tensor) -> Mapping[str, Scores]:
        mentee = self.mentee.head(self.mentee.body(images))
        return {"head": Scores.of_logits(self.logits(images)), "mentee": Scores.of_logits(mentee)}


def _both_divergences(a: Tensor, b: Tensor) -> Tensor:
    """KL(p_a || p_b) + KL(p_b || p_a) of the softmaxes of logits, averaged over samples and classes."""
    log_a, log_b = a.log_softmax(dim=1), b.log_softmax(dim=1)
    return ((log_a.exp() - log_b.exp()) * (log_a - log_b)).mean()
