"""The mini-8 group: eight unlike architectures small enough to train on a laptop's processor.

They differ in what sits between stem and projection. They share what makes small models learn from little
data under plain SGD: group normalisation, which needs no running statistics and so is as good after three
batches of two images as after a thousand, and a normalised projection that keeps the layout of the image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from feddbp_common.catalog import FEATURE_DIM

if TYPE_CHECKING:
    from feddbp_client.models.shapes import ImageShape

_STEM = 24
"""Channels after the stem."""

_TRUNK = 48
"""Channels every trunk ends with, at a quarter of the stem's resolution."""


def mini_plain(image_shape: ImageShape) -> nn.Module:
    return _body(image_shape, _conv(_STEM, 48, stride=2), _conv(48, _TRUNK, stride=2))


def mini_residual(image_shape: ImageShape) -> nn.Module:
    return _body(image_shape, _residual_block(_STEM, 24), _residual_block(24, _TRUNK))


def mini_depthwise(image_shape: ImageShape) -> nn.Module:
    return _body(
        image_shape,
        _inverted_residual(_STEM, 32, expansion=2, stride=2),
        _inverted_residual(32, _TRUNK, expansion=3, stride=2),
        _inverted_residual(_TRUNK, _TRUNK, expansion=3),
    )


def mini_inception(image_shape: ImageShape) -> nn.Module:
    return _body(
        image_shape,
        nn.MaxPool2d(3, stride=2, padding=1),
        _inception(_STEM, narrow=16, outputs=16),
        nn.MaxPool2d(3, stride=2, padding=1),
        _inception(64, narrow=16, outputs=12),
    )


def mini_dense(image_shape: ImageShape) -> nn.Module:
    growth = 16
    return _body(
        image_shape,
        nn.AvgPool2d(2, ceil_mode=True),
        *(_Concatenate(nn.Identity(), _conv(_STEM + i * growth, growth)) for i in range(3)),
        _conv(_STEM + 3 * growth, 32, kernel=1),
        nn.AvgPool2d(2, ceil_mode=True),
        *(_Concatenate(nn.Identity(), _conv(32 + i * growth, growth)) for i in range(3)),
        _conv(32 + 3 * growth, _TRUNK, kernel=1),
    )


def mini_squeeze(image_shape: ImageShape) -> nn.Module:
    return _body(
        image_shape,
        _conv(_STEM, 48, stride=2, groups=2),
        _Gate(48),
        _Sum(_conv(48, 48, kernel=1), nn.Identity()),
        _conv(48, _TRUNK, stride=2, groups=2),
        _Gate(_TRUNK),
    )


def mini_mixer(image_shape: ImageShape) -> nn.Module:
    channels, height, width = image_shape
    # Eight patches a side, whatever the size; a margin of less than one patch is left out.
    patch = (-(-height // 8), -(-width // 8))
    tokens = (height // patch[0]) * (width // patch[1])
    return nn.Sequential(
        nn.Conv2d(channels, _TRUNK, patch, stride=patch),
        _MixerBlock(tokens, _TRUNK),
        _MixerBlock(tokens, _TRUNK),
        _group_norm(_TRUNK),
        _projection(),
    )


def mini_dilated(image_shape: ImageShape) -> nn.Module:
    return _body(
        image_shape,
        _conv(_STEM, 32, kernel=1),
        nn.AvgPool2d(2, ceil_mode=True),
        _Sum(_conv(32, 32, dilation=2), nn.Identity()),
        _Sum(_conv(32, 32, dilation=3), nn.Identity()),
        _conv(32, _TRUNK, kernel=1),
        nn.AvgPool2d(2, ceil_mode=True),
    )


def _body(image_shape: ImageShape, *trunk: nn.Module) -> nn.Module:
    channels, height, width = image_shape
    # The stem brings any size to about 16 x 16, so that 64 x 64 images cost little more than small ones.
    stride = max(1, min(height, width) // 16)
    kernel = max(3, stride + 1 + stride % 2)
    return nn.Sequential(_conv(channels, _STEM, kernel=kernel, stride=stride), *trunk, _projection())


def _projection() -> nn.Module:
    """Keeps a 4 x 4 grid: averaging the whole map away costs ten points of accuracy in a network this shallow.

    The layer normalisation gives the features of all eight the same scale, whatever the trunk.
    """
    grid = 4
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(grid),
        nn.Flatten(),
        nn.Linear(_TRUNK * grid * grid, FEATURE_DIM, bias=False),
        nn.LayerNorm(FEATURE_DIM),
        nn.ReLU(),
    )


def _group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(channels // 8, channels)


def _conv(
    inputs: int,
    outputs: int,
    *,
    kernel: int = 3,
    stride: int = 1,
    groups: int = 1,
    dilation: int = 1,
    activation: bool = True,
) -> nn.Sequential:
    padding = dilation * (kernel // 2)
    layers = [
        nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, groups, bias=False),
        _group_norm(outputs),
    ]
    return nn.Sequential(*layers, nn.ReLU()) if activation else nn.Sequential(*layers)


def _residual_block(inputs: int, outputs: int) -> nn.Module:
    body = nn.Sequential(_conv(inputs, outputs, stride=2), _conv(outputs, outputs, activation=False))
    shortcut = _conv(inputs, outputs, kernel=1, stride=2, activation=False)
    return nn.Sequential(_Sum(body, shortcut), nn.ReLU())


def _inverted_residual(inputs: int, outputs: int, *, expansion: int, stride: int = 1) -> nn.Module:
    hidden = expansion * inputs
    body = nn.Sequential(
        _conv(inputs, hidden, kernel=1),
        _conv(hidden, hidden, stride=stride, groups=hidden),
        _conv(hidden, outputs, kernel=1, activation=False),
    )
    return _Sum(body, nn.Identity()) if stride == 1 and inputs == outputs else body


def _inception(inputs: int, *, narrow: int, outputs: int) -> nn.Module:
    """Four views of the same map, each giving `outputs` channels."""
    return _Concatenate(
        _conv(inputs, outputs, kernel=1),
        nn.Sequential(_conv(inputs, narrow, kernel=1), _conv(narrow, outputs, kernel=3)),
        nn.Sequential(_conv(inputs, narrow, kernel=1), _conv(narrow, outputs, kernel=5)),
        nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), _conv(inputs, outputs, kernel=1)),
    )


class _Sum(nn.Module):
    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([branch(x) for branch in self.branches]).sum(0)


class _Concatenate(nn.Module):
    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


class _Gate(nn.Module):
    """Squeeze and excitation: the map's mean decides how much of each channel passes."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.excite = nn.Sequential(
            nn.Linear(channels, channels // 4), nn.ReLU(), nn.Linear(channels // 4, channels), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        gate: Tensor = self.excite(x.mean(dim=(2, 3)))
        return x * gate[:, :, None, None]


class _MixerBlock(nn.Module):
    """Mixes positions, then channels; there is no convolution in it."""

    def __init__(self, tokens: int, channels: int) -> None:
        super().__init__()
        self.token_norm = nn.LayerNorm(channels)
        self.token_mix = _perceptron(tokens, 64)
        self.channel_norm = nn.LayerNorm(channels)
        self.channel_mix = _perceptron(channels, 2 * channels)

    def forward(self, x: Tensor) -> Tensor:
        t = x.flatten(2).transpose(1, 2)
        t = t + self.token_mix(self.token_norm(t).transpose(1, 2)).transpose(1, 2)
        t = t + self.channel_mix(self.channel_norm(t))
        return t.transpose(1, 2).reshape(x.shape)


def _perceptron(width: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
