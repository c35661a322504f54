"""Base of methods that upload class means of a plain model's features and add terms to cross-entropy."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, TypeVar

from torch import Tensor, nn

from feddbp_client.methods.base import Objective, Task
from feddbp_client.methods.collecting import ClassCollector
from feddbp_client.methods.plain import PlainModel
from feddbp_client.methods.received import ClassTable
from feddbp_client.methods.scores import ScoreKind, Scores
from feddbp_client.training.class_statistics import Images, evaluation
from feddbp_common.methods.contract import CollectingSettings
from feddbp_common.wire import Payload, PrototypeSet

CollectingT = TypeVar("CollectingT", bound=CollectingSettings)


class PrototypeModel(PlainModel[CollectingT]):
    """Cross-entropy plus a method's terms; terms that need prototypes are left out until some are received."""

    sends_counts: ClassVar[bool] = False
    """Whether the upload has the number of samples of each prototype."""

    def __init__(
        self, *, backbone: nn.Module, make_head: Callable[[], nn.Module], settings: CollectingT, task: Task
    ) -> None:
        super().__init__(backbone=backbone, make_head=make_head, settings=settings, task=task)
        self._collector = ClassCollector(settings.collect, classes=task.classes, width=task.feature_dim)

    @abstractmethod
    def terms(self, z: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
        """The method's own loss terms for features z, before weighting."""

    def weights(self) -> Mapping[str, float]:
        """Weights of the terms, including cross-entropy, `ce`; a term without one has weight one."""
        return {}

    def collected(self, z: Tensor) -> Tensor:
        """The vectors whose class means are uploaded."""
        return z

    def uploaded_features(self, images: Tensor) -> Tensor:
        return self.collected(self.features(images))

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        self._collector.begin_epoch(epoch)

    def objective(self, images: Tensor, labels: Tensor) -> Objective:
        z = self.features(images)
        self._collector.observe(self.collected(z.detach()), labels)
        terms = {"ce": self.cross_entropy(self.head(z), labels), **self.terms(z, labels)}
        return Objective.weighted(terms, self.weights())

    def collect(self, images: Images, labels: Tensor, *, batch_size: int) -> Payload:
        with evaluation(self):
            found = self._collector.collect(
                lambda batch, _: self.uploaded_features(batch),
                images,
                labels,
                batch_size=batch_size,
                device=self.device,
            )
        return Payload(
            prototypes=PrototypeSet(
                class_ids=found.class_ids,
                vectors=found.means,
                counts=found.counts if self.sends_counts else None,
            )
        )

    def scores_by_prototype(self, images: Tensor, prototypes: ClassTable | None) -> Mapping[str, Scores]:
        """Scores by the head, and by squared distance to the prototypes."""
        z = self.features(images)
        near = Scores.of_nearness(z, prototypes, classes=self.task.classes, kind=ScoreKind.SQUARED_DISTANCE)
        return {"prototype": near, "head": Scores.of_logits(self.head(z))}
