"""Vision transformers for square images of any size that their patches divide."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from feddbp_client.models.blocks import ImageShape, ModelError
from feddbp_client.models.imagenet import with_channels
from feddbp_client.models.torchvision_compat import torchvision


def vit_b(patch: int) -> Callable[[ImageShape], nn.Module]:
    def build(image_shape: ImageShape) -> nn.Module:
        channels, height, width = image_shape
        if height != width or height % patch:
            raise ModelError(f"vit_b_{patch} needs square images in patches of {patch}, these are {height}x{width}")
        network = torchvision().models.VisionTransformer(
            image_size=height,
            patch_size=patch,
            num_layers=12,
            num_heads=12,
            hidden_dim=768,
            mlp_dim=3072,
        )
        network.heads = nn.Identity()
        # unlike the other stems, this one is drawn on a scale that depends on the number of channels
        with torch.no_grad():
            network.conv_proj.weight.mul_(math.sqrt(3 / channels))
        return with_channels(network, channels)

    return build
