"""FD on the client: outputs are distilled towards the clients' mean output for the class."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from feddbp_client.methods.base import Objective, Task
from feddbp_client.methods.collecting import ClassCollector
from feddbp_client.methods.plain import PlainModel
from feddbp_client.methods.received import ClassTable
from feddbp_client.training.class_statistics import Images, evaluation
from feddbp_common.methods.fd import FDSettings
from feddbp_common.wire import Payload, PrototypeSet


class FD(PlainModel[FDSettings]):
    """Exchanges logits, or probabilities where the run averages those."""

    def __init__(
        self, *, backbone: nn.Module, make_head: Callable[[], nn.Module], settings: FDSettings, task: Task
    ) -> None:
        super().__init__(backbone=backbone, make_head=make_head, settings=settings, task=task)
        self._outputs = ClassCollector(settings.collect, classes=task.classes, width=task.classes)
        self._targets: ClassTable | None = None

    def receive(self, payload: Payload, *, completed_rounds: int) -> None:
        received = ClassTable.from_prototypes(payload.prototypes, classes=self.task.classes, device=self.device)
        if received is not None and self.settings.target == "softmax_of_mean":
            received = ClassTable(received.vectors.softmax(dim=1), received.known)
        self._targets = received

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        self._outputs.begin_epoch(epoch)

    def objective(self, images: Tensor, labels: Tensor) -> Objective:
        logits = self.logits(images)
        self._outputs.observe(self._exchanged(logits), labels)
        terms = {"ce": self.cross_entropy(logits, labels)}
        if self._targets is not None:
            terms["distillation"] = distillation(logits, self._targets, labels)
        return Objective.weighted(terms, {"distillation": self.settings.gamma})

    def collect(self, images: Images, labels: Tensor, *, batch_size: int) -> Payload:
        with evaluation(self):
            found = self._outputs.collect(
                lambda batch, _: self._exchanged(self.logits(batch)),
                images,
                labels,
                batch_size=batch_size,
                device=self.device,
            )
        return Payload(prototypes=PrototypeSet(class_ids=found.class_ids, vectors=found.means))

    def _exchanged(self, logits: Tensor) -> Tensor:
        return logits.softmax(dim=1) if self.settings.target == "mean_of_softmax" else logits


def distillation(logits: Tensor, targets: ClassTable, labels: Tensor) -> Tensor:
    """Cross-entropy with the soft target of the label's class, averaged over the batch; zero where there is none."""
    losses = -(targets.vectors[labels] * logits.log_softmax(dim=1)).sum(dim=1)
    return (losses * targets.known[labels]).mean()
