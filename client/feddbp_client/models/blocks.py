"""What all models share: image shape, feature pooling, heads and their error."""

from __future__ import annotations

from typing import TypeAlias

import torch.nn.functional as F
from torch import Tensor, nn

from feddbp_common.config.catalog import FEATURE_DIM
from feddbp_common.errors import ConfigurationError

ImageShape: TypeAlias = tuple[int, int, int]
"""(channels, height, width)."""


class ModelError(ConfigurationError):
    """An unknown architecture or head, or one that does not fit the images."""


class FeaturePool(nn.Module):
    """Adaptive average pooling over the feature axis to a common width, without parameters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, features: Tensor) -> Tensor:
        if features.shape[1] == self.width:
            return features
        return F.adaptive_avg_pool1d(features.unsqueeze(1), self.width).squeeze(1)


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
