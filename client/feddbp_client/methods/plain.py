"""A backbone and one head: the model of methods that differ only in their loss and their exchange."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from torch import Tensor, nn

from feddbp_client.methods.base import LocalMethod, SettingsT, Task
from feddbp_client.methods.scores import Scores
from feddbp_common.wire import Payload


class PlainModel(LocalMethod[SettingsT]):
    """One network whose head predicts; ignores downloads unless a method overrides `receive`."""

    inference_rules: ClassVar[tuple[str, ...]] = ("head",)

    def __init__(
        self, *, backbone: nn.Module, make_head: Callable[[], nn.Module], settings: SettingsT, task: Task
    ) -> None:
        super().__init__(backbone=backbone, make_head=make_head, settings=settings, task=task)
        self.head = make_head()

    @property
    def inference(self) -> str:
        return "head"

    def receive(self, payload: Payload, *, completed_rounds: int) -> None:
        """Ignores the payload, which is empty."""

    def features(self, images: Tensor) -> Tensor:
        """z, [B, d]."""
        z: Tensor = self.backbone(images)
        return z

    def logits(self, images: Tensor) -> Tensor:
        """o, [B, C]."""
        o: Tensor = self.head(self.features(images))
        return o

    def scores(self, images: Tensor) -> Mapping[str, Scores]:
        return {"head": Scores.of_logits(self.logits(images))}
