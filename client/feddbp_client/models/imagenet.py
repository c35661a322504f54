"""torchvision's ImageNet architectures without classifiers; stems differ only in their number of channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from feddbp_client.models.blocks import ImageShape, ModelError
from feddbp_client.models.torchvision_compat import torchvision

_DROPOUT: Final = 0.2
_SMALLEST_FOR_GOOGLENET: Final = 15


def resnet(depth: int) -> Callable[[ImageShape], nn.Module]:
    def build(image_shape: ImageShape) -> nn.Module:
        network = getattr(torchvision().models, f"resnet{depth}")(weights=None)
        network.fc = nn.Identity()
        return with_channels(network, image_shape[0])

    return build


def googlenet(image_shape: ImageShape) -> nn.Module:
    channels, height, width = image_shape
    if min(height, width) < _SMALLEST_FOR_GOOGLENET:
        least = f"{_SMALLEST_FOR_GOOGLENET}x{_SMALLEST_FOR_GOOGLENET}"
        raise ModelError(f"googlenet needs images of at least {least}, these are {height}x{width}")
    # explicit: it is torchvision's default today, which warns that it may change
    network = torchvision().models.googlenet(weights=None, aux_logits=False, init_weights=True)
    network.fc = nn.Identity()
    return with_channels(network, channels)


def mobilenet_v2(image_shape: ImageShape) -> nn.Module:
    network = torchvision().models.mobilenet_v2(weights=None)
    # the dropout is part of the replaced classifier; it is kept, as GoogLeNet keeps its own
    network.classifier = nn.Dropout(_DROPOUT)
    return with_channels(network, image_shape[0])


def with_channels(network: Any, channels: int) -> nn.Module:
    """Adapts the first convolution to images whose number of channels is not three."""
    assert isinstance(network, nn.Module)
    first = next(module for module in network.modules() if isinstance(module, nn.Conv2d))
    if channels != first.in_channels:
        # All channels' weights have the same distribution, so those drawn are reused and the stem starts at the
        # architecture's own scale. A fourth channel starts as a copy of the first and diverges with the first step.
        weight = first.weight.detach()
        first.weight = nn.Parameter(weight[:, torch.arange(channels, device=weight.device) % first.in_channels])
        first.in_channels = channels
    return network
