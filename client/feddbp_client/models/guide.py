"""The networks that all clients of a run have in common, as `feddbp_common.methods.guide_network` declares them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feddbp_client.models.blocks import Backbone, ImageShape
from feddbp_client.models.pooling import average_pool
from feddbp_common.methods.guide_network import GRID, KERNEL, STEM_KERNEL, GuideNetwork


class GuideBody(Backbone):
    """From images of any size to the guide's feature; without batch norm, whose statistics averaging would blur."""

    def __init__(self, network: GuideNetwork, image_shape: ImageShape) -> None:
        super().__init__()
        first, second, third = network.maps
        channels, _, _ = image_shape
        self.conv1 = nn.Conv2d(channels, first, STEM_KERNEL, stride=2, padding=STEM_KERNEL // 2, bias=False)
        self.norm1 = _norm(first)
        self.conv2 = nn.Conv2d(first, second, KERNEL, padding=KERNEL // 2, bias=False)
        self.norm2 = _norm(second)
        self.conv3 = nn.Conv2d(second, third, KERNEL, stride=2, padding=KERNEL // 2, bias=False)
        self.norm3 = _norm(third)
        self.projection = nn.Linear(third * GRID**2, network.width, bias=False)
        self.norm4 = nn.LayerNorm(network.width)

    def _pass(self, images: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(images)))
        x = average_pool(F.max_pool2d(x, _pooling(x.shape[2:])), 2 * GRID, 2 * GRID)
        x = F.relu(self.norm2(self.conv2(x)))
        x = F.relu(self.norm3(self.conv3(x)))
        return F.relu(self.norm4(self.projection(x.flatten(1))))


def _pooling(size: torch.Size) -> tuple[int, int]:
    """The kernel that leaves at least the wanted map; of a side of 32 or 64 pixels, exactly."""
    height, width = size
    return max(1, height // (2 * GRID)), max(1, width // (2 * GRID))


def _norm(channels: int) -> nn.Module:
    return nn.GroupNorm(channels // 8, channels)
