"""A fixed network: random projections of an image."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor, nn

from feddbp_client.models.blocks import ImageShape
from feddbp_common.config.catalog import FEATURE_DIM

_LEAST: Final = 1e-6


class RandomFeatures(nn.Module):
    """Every image at mean zero and deviation one, times a random matrix. Without parameters."""

    projection: Tensor

    def __init__(self, image_shape: ImageShape, *, width: int = FEATURE_DIM) -> None:
        super().__init__()
        pixels = math.prod(image_shape)
        self.register_buffer("projection", torch.randn(pixels, width) / math.sqrt(pixels))

    def forward(self, images: Tensor) -> Tensor:
        flat = images.flatten(start_dim=1)
        centred = flat - flat.mean(dim=1, keepdim=True)
        scaled = centred / centred.square().mean(dim=1, keepdim=True).sqrt().clamp_min(_LEAST)
        return scaled @ self.projection
