"""Classification heads by kind."""

from __future__ import annotations

from torch import nn

from feddbp_client.models.errors import ModelError
from feddbp_common.config.catalog import FEATURE_DIM


def build_head(kind: str, classes: int, *, feature_dim: int = FEATURE_DIM) -> nn.Module:
    """A head from features to logits; none ends in an activation, which would cut logits off."""
    match kind:
        case "linear":
            return nn.Linear(feature_dim, classes)
        case "hidden512" | "hidden256" | "hidden128":
            hidden = int(kind.removeprefix("hidden"))
            return nn.Sequential(nn.Linear(feature_dim, hidden), nn.ReLU(), nn.Linear(hidden, classes))
        case "tanh768":
            return nn.Sequential(nn.Linear(feature_dim, 768), nn.Tanh(), nn.Linear(768, classes))
    raise ModelError(f"no head is called {kind!r}")
