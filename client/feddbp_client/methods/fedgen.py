"""FedGen on the client: the shared head is trained on real and on generated features."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from feddbp_client.methods.base import Objective, Task
from feddbp_client.methods.generator import FrozenGenerator
from feddbp_client.methods.shared_head import SharedHeadModel
from feddbp_common.methods.fedgen import FedGenSettings
from feddbp_common.wire import Payload


class FedGen(SharedHeadModel[FedGenSettings]):
    """Generated features train only the head; in the full method their logits also guide real samples."""

    def __init__(
        self, *, backbone: nn.Module, make_head: Callable[[], nn.Module], settings: FedGenSettings, task: Task
    ) -> None:
        super().__init__(backbone=backbone, make_head=make_head, settings=settings, task=task)
        self._generator: FrozenGenerator | None = None
        self._weights: Mapping[str, float] = {}

    def receive(self, payload: Payload, *, completed_rounds: int) -> None:
        super().receive(payload, completed_rounds=completed_rounds)
        self._generator = FrozenGenerator.from_payload(payload, device=self.device)
        if self.settings.full:
            fading = self.settings.decay**completed_rounds
            self._weights = {"generated": self.settings.alpha * fading, "latent": self.settings.beta * fading}

    def objective(self, images: Tensor, labels: Tensor) -> Objective:
        logits = self.logits(images)
        terms = {"ce": self.cross_entropy(logits, labels)}
        if self._generator is not None:
            drawn = self._generator.draw_labels(len(labels))
            terms["generated"] = self.cross_entropy(self.head(self._generator.features(drawn)), drawn)
            if self.settings.full:
                terms["latent"] = self._latent(logits, labels, self._generator)
        return Objective.weighted(terms, self._weights)

    def _latent(self, logits: Tensor, labels: Tensor, generator: FrozenGenerator) -> Tensor:
        """KL to the head's output for a generated feature of the same label; zero for labels without one."""
        target = self.head(generator.features(labels)).detach()
        divergences = F.kl_div(
            logits.log_softmax(dim=1), target.log_softmax(dim=1), reduction="none", log_target=True
        ).sum(dim=1)
        return (divergences * generator.known[labels]).mean()
