"""What all models share: image shape, the frame of a backbone, feature pooling, heads and their error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import torch
from torch import Tensor, nn

from feddbp_client.models.chunks import in_chunks
from feddbp_client.models.pooling import average_pool
from feddbp_common.config.catalog import FEATURE_DIM
from feddbp_common.errors import ConfigurationError

ImageShape: TypeAlias = tuple[int, int, int]
"""(channels, height, width)."""


class ModelError(ConfigurationError):
    """An unknown architecture or head, or one that does not fit the images."""


class Backbone(nn.Sequential):
    """A network from images to features, in order: a body, and pooling to the common width.

    How it is computed is set from outside, and is no part of its state.
    """

    half_type: torch.dtype | None = None
    """The type of mixed precision; features are float32 in any case."""
    chunk: int | None = None
    """Most images that are passed through at once; None for a whole batch."""

    def forward(self, images: Tensor) -> Tensor:
        if self.half_type is None:
            return self._features(images)
        with torch.autocast(images.device.type, dtype=self.half_type):
            return self._features(images).float()

    def _features(self, images: Tensor) -> Tensor:
        if self.chunk is None or len(images) <= self.chunk:
            return self._pass(images)
        return in_chunks(self._pass, self, images, most=self.chunk)

    def _pass(self, images: Tensor) -> Tensor:
        for part in self:
            images = part(images)
        return images


def backbones_in(module: nn.Module) -> Iterator[Backbone]:
    """All backbones of a method: that of the client, and those of small networks beside it."""
    return (part for part in module.modules() if isinstance(part, Backbone))


class FeaturePool(nn.Module):
    """Adaptive average pooling over the feature axis to a common width, without parameters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, features: Tensor) -> Tensor:
        if features.shape[1] == self.width:
            return features
        return average_pool(features.unsqueeze(1), self.width).squeeze(1)


def build_head(kind: str, classes: int, *, feature_dim: int = FEATURE_DIM) -> nn.Module:
    """Builds a head from features to logits; none ends in an activation, which would clip the logits."""
    match kind:
        case "linear":
            return nn.Linear(feature_dim, classes)
        case "hidden512" | "hidden256" | "hidden128":
            hidden = int(kind.removeprefix("hidden"))
            return nn.Sequential(nn.Linear(feature_dim, hidden), nn.ReLU(), nn.Linear(hidden, classes))
        case "tanh768":
            return nn.Sequential(nn.Linear(feature_dim, 768), nn.Tanh(), nn.Linear(768, classes))
    raise ModelError(f"no head is called {kind!r}")
