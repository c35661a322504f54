"""A network that clients share: equal initial weights on all of them, exchanged by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from feddbp_client.methods.base import Task
from feddbp_common.errors import ConfigurationError
from feddbp_common.wire.payload import AnyArray, FloatArray


class SharedModel(nn.Module, ABC):
    """A body, a linear head, and their weights as they are exchanged."""

    body: nn.Module
    head: nn.Module

    def __init__(self, task: Task) -> None:
        super().__init__()
        self._image_shape = task.image_shape

    @abstractmethod
    def weights(self) -> dict[str, Tensor]:
        """All weights, by the names under which they are exchanged."""

    def tensors(self) -> dict[str, FloatArray]:
        """A copy of the weights, as they are exchanged."""
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self.weights().items()}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, AnyArray]) -> None:
        """Replaces all weights; none may be missing."""
        self.check(tensors)
        for name, weight in self.weights().items():
            weight.copy_(torch.tensor(tensors[name]))

    def check(self, tensors: Mapping[str, AnyArray]) -> None:
        """Raises ConfigurationError unless there is one tensor for every weight, in its shape."""
        own = self.weights()
        for name in sorted(own.keys() | tensors.keys()):
            self._check(name, tensors.get(name), own.get(name))

    def _check(self, name: str, received: AnyArray | None, own: Tensor | None) -> None:
        if received is None or own is None:
            raise ConfigurationError(f"{name} of the shared model is {'missing' if own is not None else 'unknown'}")
        if received.shape != own.shape:
            channels, height, width = self._image_shape
            raise ConfigurationError(
                f"{name} of the shared model has shape {list(received.shape)}, but {list(own.shape)} for this client's "
                f"images of {channels} x {height} x {width}; all clients of a run need images of one shape"
            )
