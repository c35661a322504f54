"""The mini-8 group: eight different architectures, small enough to train on a laptop's CPU.

They differ between stem and projection. They share what lets small models learn from little data under plain SGD:
group normalisation, which has no running statistics and so works as well after three batches of two images as after
a thousand, and a normalised projection that keeps the layout of the image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from feddbp_client.models.pooling import average_pool
from feddbp_common.config.catalog import FEATURE_DIM

if TYPE_CHECKING:
    from feddbp_client.models.blocks import ImageShape

_STEM = 32
"""Channels after the stem, whose map is about 8 x 8."""

_TRUNK = 48
"""Channels after every trunk, whose map is about 4 x 4."""

_GROWTH = 16
"""Channels each layer of a dense block adds."""


def mini_plain(image_shape: ImageShape) -> nn.Module:
    return _body(image_shape, _conv(_STEM, 32), _conv(32, _TRUNK, stride=2))


def mini_residual(image_shape: ImageShape) -> nn.Module:
    return _body(image_shape, _residual_block(_STEM, 32), _residual_block(32, _TRUNK, stride=2))


def mini_depthwise(image_shape: ImageShape) -> nn.Module:
    return _body(
        image_shape,
        _inverted_residual(_STEM, 32, expansion=2),
        _inverted_residual(32, _TRUNK, expansion=2, stride=2),
        _inverted_residual(_TRUNK, _TRUNK, expansion=2),
    )


def mini_inception(image_shape: ImageShape) -> nn.Module:
    return _body(
        image_shape,
        _inception(_STEM, 48),
        nn.MaxPool2d(2, ceil_mode=True),
        _inception(48, _TRUNK),
    )


def mini_dense(image_shape: ImageShape) -> nn.Module:
    return _body(
        image_shape,
        *_dense_block(_STEM, layers=2),
        _conv(_STEM + 2 * _GROWTH, 32, kernel=1),
        nn.AvgPool2d(2, ceil_mode=True),
        *_dense_block(32, layers=3),
        _conv(32 + 3 * _GROWTH, _TRUNK, kernel=1),
    )


def mini_squeeze(image_shape: ImageShape) -> nn.Module:
    return _body(
        image_shape,
        _Residual(nn.Sequential(_conv(_STEM, 32), _Gate(32))),
        nn.Sequential(_conv(32, _TRUNK, stride=2), _Gate(_TRUNK)),
    )


def mini_mixer(image_shape: ImageShape) -> nn.Module:
    channels, height, width = image_shape
    # A margin of less than one patch is left out.
    patch = (_coarsening(height), _coarsening(width))
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
        # Dilation widens the receptive field without lowering the resolution.
        _conv(_STEM, 24, kernel=1),
        *(_Residual(_conv(24, 24, dilation=dilation)) for dilation in (1, 2, 3)),
        nn.AvgPool2d(2, ceil_mode=True),
        _conv(24, _TRUNK, kernel=1),
    )


def _body(image_shape: ImageShape, *trunk: nn.Module) -> nn.Module:
    channels, height, width = image_shape
    # The stem reduces any size to the same map, so that 64 x 64 images cost little more than small ones.
    stride = _coarsening(min(height, width))
    kernel = 2 * (stride // 2) + 3
    return nn.Sequential(_conv(channels, _STEM, kernel=kernel, stride=stride), *trunk, _projection())


def _coarsening(size: int) -> int:
    return -(-size // 8)


def _projection() -> nn.Module:
    """Projects a 4 x 4 grid to the feature: averaging the whole map costs such shallow networks ten points of accuracy.

    The layer normalisation gives the features of all eight architectures the same scale.
    """
    grid = 4
    return nn.Sequential(
        _Grid(grid),
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


def _residual_block(inputs: int, outputs: int, *, stride: int = 1) -> nn.Module:
    body = nn.Sequential(_conv(inputs, outputs, stride=stride), _conv(outputs, outputs, activation=False))
    same = stride == 1 and inputs == outputs
    shortcut = None if same else _conv(inputs, outputs, kernel=1, stride=stride, activation=False)
    return nn.Sequential(_Residual(body, shortcut), nn.ReLU())


def _inverted_residual(inputs: int, outputs: int, *, expansion: int, stride: int = 1) -> nn.Module:
    hidden = expansion * inputs
    body = nn.Sequential(
        _conv(inputs, hidden, kernel=1),
        _conv(hidden, hidden, stride=stride, groups=hidden),
        _conv(hidden, outputs, kernel=1, activation=False),
    )
    return _Residual(body) if stride == 1 and inputs == outputs else body


def _inception(inputs: int, outputs: int) -> nn.Module:
    """Three parallel convolutions of the same map, with kernels of 1, 3 and 5."""
    third = outputs // 3
    return _Concatenate(
        _conv(inputs, third, kernel=1),
        nn.Sequential(_conv(inputs, third, kernel=1), _conv(third, third, kernel=3)),
        nn.Sequential(_conv(inputs, third, kernel=1), _conv(third, third, kernel=5)),
    )


def _dense_block(inputs: int, *, layers: int) -> list[nn.Module]:
    """Each layer gets the outputs of all layers before it and appends its own."""
    return [_Concatenate(nn.Identity(), _conv(inputs + layer * _GROWTH, _GROWTH)) for layer in range(layers)]


class _Residual(nn.Module):
    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.shortcut = nn.Identity() if shortcut is None else shortcut

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.shortcut(x) + self.body(x)
        return out


class _Grid(nn.Module):
    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        return average_pool(x, self.side, self.side)


class _Concatenate(nn.Module):
    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


class _Gate(nn.Module):
    """Squeeze and excitation: scales each channel by a gate computed from the map's mean."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.excite = nn.Sequential(
            nn.Linear(channels, channels // 4), nn.ReLU(), nn.Linear(channels // 4, channels), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        gate: Tensor = self.excite(x.mean(dim=(2, 3)))
        return x * gate[:, :, None, None]


class _MixerBlock(nn.Module):
    """Mixes positions, then channels, without a convolution."""

    def __init__(self, tokens: int, channels: int) -> None:
        super().__init__()
        self.token_norm = nn.LayerNorm(channels)
        self.token_mix = _perceptron(tokens, 32)
        self.channel_norm = nn.LayerNorm(channels)
        self.channel_mix = _perceptron(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        t: Tensor = x.flatten(2).transpose(1, 2)
        t = t + self.token_mix(self.token_norm(t).transpose(1, 2)).transpose(1, 2)
        t = t + self.channel_mix(self.channel_norm(t))
        return t.transpose(1, 2).reshape(x.shape)


def _perceptron(width: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))
