"""A model of one's own: a function from the shape of an image to a torch module."""

from __future__ import annotations

from torch import nn


def tiny_net(image_shape: tuple[int, int, int]) -> nn.Module:
    """Images [batch, channels, height, width] to features [batch, 256].

    The width of the features is free: they are pooled to the run's common width, and the method adds the head.
    """
    channels, _, _ = image_shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),  # any height and width become 2 x 2
        nn.Flatten(),
    )
