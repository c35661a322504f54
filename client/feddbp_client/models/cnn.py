"""The four-layer CNN of HtFLlib without its head; also the shared small network of FedKD and FedMRL."""

from __future__ import annotations

from typing import Final

from torch import nn

from feddbp_client.models.blocks import ImageShape, ModelError
from feddbp_common.methods.small_model import flattened_width

_SMALLEST: Final = 16
_WIDTH: Final = 512


def cnn4(image_shape: ImageShape) -> nn.Module:
    channels, height, width = image_shape
    if min(height, width) < _SMALLEST:
        raise ModelError(f"cnn4 needs images of at least {_SMALLEST}x{_SMALLEST}, these are {height}x{width}")
    return nn.Sequential(
        nn.Conv2d(channels, 32, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(flattened_width(image_shape), _WIDTH),
        nn.ReLU(),
    )
