"""torchvision's ImageNet architectures without their classifiers, stems unchanged but for the number of channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from torch import nn

from feddbp_client.models.shapes import ImageShape
from feddbp_client.torchvision_compat import torchvision

_DROPOUT: Final = 0.2


def resnet(depth: int) -> Callable[[ImageShape], nn.Module]:
    def build(image_shape: ImageShape) -> nn.Module:
        network = getattr(torchvision().models, f"resnet{depth}")(weights=None)
        network.fc = nn.Identity()
        return with_channels(network, image_shape[0])

    return build


def googlenet(image_shape: ImageShape) -> nn.Module:
    network = torchvision().models.googlenet(weights=None, aux_logits=False, init_weights=False)
    network.fc = nn.Identity()
    return with_channels(network, image_shape[0])


def mobilenet_v2(image_shape: ImageShape) -> nn.Module:
    network = torchvision().models.mobilenet_v2(weights=None)
    # its dropout belongs to the classifier that is replaced; features are to be as noisy as the others'
    network.classifier = nn.Dropout(_DROPOUT)
    return with_channels(network, image_shape[0])


def with_channels(network: Any, channels: int) -> nn.Module:
    """Rebuilds the first convolution where images have another number of channels than three."""
    assert isinstance(network, nn.Module)
    if channels == 3:
        return network
    name, first = next((name, module) for name, module in network.named_modules() if isinstance(module, nn.Conv2d))
    parent = network.get_submodule(name.rpartition(".")[0])
    rebuilt = nn.Conv2d(
        channels,
        first.out_channels,
        kernel_size=first.kernel_size,  # type: ignore[arg-type]
        stride=first.stride,  # type: ignore[arg-type]
        padding=first.padding,  # type: ignore[arg-type]
        bias=first.bias is not None,
    )
    setattr(parent, name.rpartition(".")[2], rebuilt)
    return network
