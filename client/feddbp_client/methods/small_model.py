"""The small network that some methods share: equal initial weights on all clients, exchanged by name."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from feddbp_client.methods.base import Task
from feddbp_client.models import build_backbone
from feddbp_common.errors import ConfigurationError
from feddbp_common.methods.small_model import SMALL_MODEL
from feddbp_common.seeding import derive_seed
from feddbp_common.wire.payload import AnyArray, FloatArray


class SmallModel(nn.Module):
    """The four-layer CNN with its feature pooled to `feature_dim`, and a linear head."""

    def __init__(self, task: Task, *, feature_dim: int) -> None:
        super().__init__()
        self._image_shape = task.image_shape
        # Forked: the client's own weights must not depend on whether there is a shared model.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive_seed(task.seed, "small model"))
            self.body = build_backbone("cnn4", task.image_shape, feature_dim=feature_dim)
            self.head = nn.Linear(feature_dim, task.classes)

    def tensors(self) -> dict[str, FloatArray]:
        """A copy of the weights, as they are exchanged."""
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self._by_name().items()}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, AnyArray]) -> None:
        """Replaces all weights; none may be missing."""
        self.check(tensors)
        for name, weight in self._by_name().items():
            weight.copy_(torch.tensor(tensors[name]))

    def check(self, tensors: Mapping[str, AnyArray]) -> None:
        """Raises ConfigurationError unless there is one tensor for every weight, in its shape."""
        own = self._by_name()
        for name in sorted(own.keys() | tensors.keys()):
            self._check(name, tensors.get(name), own.get(name))

    def _by_name(self) -> dict[str, Tensor]:
        return dict(zip(SMALL_MODEL, self.parameters(), strict=True))

    def _check(self, name: str, received: AnyArray | None, own: Tensor | None) -> None:
        if received is None or own is None:
            raise ConfigurationError(f"{name} of the shared model is {'missing' if own is not None else 'unknown'}")
        if received.shape != own.shape:
            channels, height, width = self._image_shape
            raise ConfigurationError(
                f"{name} of the shared model has shape {list(received.shape)}, but {list(own.shape)} for this client's "
                f"images of {channels} x {height} x {width}; all clients of a run need images of one shape"
            )
