"""The interface of a method on the client: a local loss, an upload, and inference rules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feddbp_client.methods.scores import Scores
from feddbp_client.training.class_statistics import Images, evaluation
from feddbp_common.differential_privacy.mechanism import Table
from feddbp_common.errors import FedDBPError
from feddbp_common.methods import MethodSettings
from feddbp_common.wire import Payload, WireType

SettingsT = TypeVar("SettingsT", bound=MethodSettings)


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a client learns, and the run that it learns it in."""

    classes: int
    feature_dim: int
    rounds: int
    top_channels_only: bool = False
    """Whether the run exchanges only the indices of important channels."""
    wire_type: WireType = WireType.FLOAT32
    """Element type of real tensors on the wire."""
    seed: int = 0
    """The run's seed, for random draws that must be the same on all clients."""
    image_shape: tuple[int, int, int] = (3, 32, 32)
    """(channels, height, width)."""
    guide: str = "guide_large"
    """The network that all clients have in common, for methods that exchange one."""
    fusion_at_client: bool = False
    """Whether clients fuse their own prototypes with the global ones."""
    has_unshared_classes: bool = False
    """Whether prototypes of classes that few clients have stay with them."""
    label_smoothing: float = 0.0
    """Share of a label's weight that cross-entropy spreads over all classes."""
    clip_bound: float = 1.0
    """Norm to which features are clipped, by methods that do."""
    is_private: bool = False
    """Whether the run promises differential privacy of the training samples."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The loss of one batch: the total to minimise, and its terms before weighting."""

    total: Tensor
    terms: Mapping[str, Tensor]

    @classmethod
    def weighted(cls, terms: Mapping[str, Tensor], weights: Mapping[str, float]) -> Self:
        """The weighted sum of the terms; a term without a weight has weight one."""
        total = torch.stack([_times(weights.get(name, 1.0), term) for name, term in terms.items()]).sum()
        return cls(total=total, terms={name: term.detach() for name, term in terms.items()})


class LocalMethod(nn.Module, ABC, Generic[SettingsT]):
    """The client's half of a method, and everything it trains.

    A checkpoint stores its parameters and buffers; what the server sends is received in every round and is not among
    them. A method uses no files and no sockets, and knows rounds only by number.
    """

    inference_rules: ClassVar[tuple[str, ...]]
    """All rules by which this method can predict; each is evaluated, `inference` names the main one."""

    def __init__(
        self, *, backbone: nn.Module, make_head: Callable[[], nn.Module], settings: SettingsT, task: Task
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.settings = settings
        self.task = task

    @property
    @abstractmethod
    def inference(self) -> str:
        """The main rule, whose accuracy is the client's accuracy."""

    @abstractmethod
    def receive(self, payload: Payload, *, completed_rounds: int) -> None:
        """Sets the state that the server sends at the start of a round; empty before the first aggregation."""

    @abstractmethod
    def objective(self, images: Tensor, labels: Tensor) -> Objective:
        """The local loss of a training batch."""

    @abstractmethod
    def collect(self, images: Images, labels: Tensor, *, batch_size: int) -> Payload:
        """The upload after training, from the whole training split."""

    @abstractmethod
    def scores(self, images: Tensor) -> Mapping[str, Scores]:
        """Scores of every class under every inference rule; the caller sets eval mode."""

    def exact_table(self, images: Images, labels: Tensor, *, batch_size: int) -> Table:
        """Class sums and counts, which leave the client only with noise; for methods that have differential privacy."""
        raise FedDBPError(f"{type(self).__name__} has no differential privacy")

    @property
    def reported_rules(self) -> tuple[str, ...]:
        """The inference rules whose accuracy is reported."""
        return self.inference_rules

    def uploaded_features(self, images: Tensor) -> Tensor | None:
        """The vectors of samples whose class means the upload has, [B, width]; None if it has none."""
        return None

    def cross_entropy(self, logits: Tensor, labels: Tensor, *, reduction: str = "mean") -> Tensor:
        """Cross-entropy of training samples, with the run's label smoothing."""
        return F.cross_entropy(logits, labels, label_smoothing=self.task.label_smoothing, reduction=reduction)

    def predict(self, images: Tensor) -> Mapping[str, Tensor]:
        """Class ids under every inference rule, in eval mode."""
        with evaluation(self):
            return {rule: scores.classes() for rule, scores in self.scores(images).items()}

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """The optimiser's parameter groups; by default one group of all parameters."""
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return [{"params": trained, "lr": learning_rate}]

    def set_label_counts(self, counts: Sequence[int]) -> None:
        """Called once before training, with the number of the client's training samples of every class."""

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Called before each local epoch, for methods that gather statistics while they train."""

    def clip_gradients(self) -> None:
        """Called between backward pass and step, for methods that bound their gradients."""

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


def _times(weight: float, term: Tensor) -> Tensor:
    """The product; without an operation, which a small model's training step feels, if the weight is one."""
    return term if weight == 1.0 else weight * term
