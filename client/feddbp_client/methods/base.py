"""What a method is on the client: a local loss, something to upload, and ways to predict."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from feddbp_client.methods.scores import Scores
from feddbp_client.training.class_statistics import evaluation
from feddbp_common.methods import MethodSettings
from feddbp_common.wire import Payload

SettingsT = TypeVar("SettingsT", bound=MethodSettings)


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a client is to learn, and the run it learns it in."""

    classes: int
    feature_dim: int
    rounds: int
    top_channels_only: bool = False
    """The run exchanges only the indices of important channels."""
    seed: int = 0
    """The run's: whatever all clients have to draw alike derives from it, and not from who they are."""
    image_shape: tuple[int, int, int] = (3, 32, 32)
    """(channels, height, width)."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The loss of one batch: what is minimised, and its terms before weighting."""

    total: Tensor
    terms: Mapping[str, Tensor]

    @classmethod
    def weighted(cls, terms: Mapping[str, Tensor], weights: Mapping[str, float]) -> Self:
        """The weighted sum of the terms; one without a weight counts once."""
        total = torch.stack([weights.get(name, 1.0) * term for name, term in terms.items()]).sum()
        return cls(total=total, terms={name: term.detach() for name, term in terms.items()})


class LocalMethod(nn.Module, ABC, Generic[SettingsT]):
    """The client's half of a method, and everything it trains.

    Its parameters and buffers are what a checkpoint keeps; what the server sends is handed in anew each round and is
    no part of them. Nothing here knows about files, sockets or rounds other than by number.
    """

    inference_rules: ClassVar[tuple[str, ...]]
    """Every way this method can predict; each is evaluated, one counts."""

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
        """The rule whose accuracy counts."""

    @abstractmethod
    def receive(self, payload: Payload, *, completed_rounds: int) -> None:
        """Takes in what the server sends at the start of a round; empty while the server knows nothing."""

    @abstractmethod
    def objective(self, images: Tensor, labels: Tensor) -> Objective:
        """The local loss of a training batch."""

    @abstractmethod
    def collect(self, images: Tensor, labels: Tensor, *, batch_size: int) -> Payload:
        """What to upload after training, from the whole training split."""

    @abstractmethod
    def scores(self, images: Tensor) -> Mapping[str, Scores]:
        """How well every class fits, under every rule of inference; the caller sees to eval mode."""

    def predict(self, images: Tensor) -> Mapping[str, Tensor]:
        """Class ids under every rule of inference, in eval mode."""
        with evaluation(self):
            return {rule: scores.classes() for rule, scores in self.scores(images).items()}

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """What the optimiser trains, at what step size; one group of everything unless a method says otherwise."""
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return [{"params": trained, "lr": learning_rate}]

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Called before each local epoch, for methods that gather statistics while they train."""

    def clip_gradients(self) -> None:
        """Called between backward pass and step, for methods that bound their gradients."""

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device
