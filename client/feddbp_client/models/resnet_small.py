"""ResNet-4, 6, 8 and 10: torchvision's ResNet with one basic block per stage, and one to four stages."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from feddbp_client.models.blocks import ImageShape
from feddbp_client.models.imagenet import with_channels
from feddbp_client.models.torchvision_compat import torchvision


def resnet(stages: int) -> Callable[[ImageShape], nn.Module]:
    def build(image_shape: ImageShape) -> nn.Module:
        resnets = torchvision().models.resnet
        network = resnets.ResNet(resnets.BasicBlock, [1, 1, 1, 1])
        for stage in range(stages + 1, 5):
            setattr(network, f"layer{stage}", nn.Identity())
        network.fc = nn.Identity()
        return with_channels(network, image_shape[0])

    return build
