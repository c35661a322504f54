"""RandAugment (Cubuk et al., 2020): two of fourteen operations, at magnitude 9 of 31, drawn for every sample by itself.

torchvision's RandAugment draws an operation for a whole batch. A batch is sorted by operation here: the five geometric
ones are one grid_sample with a matrix per sample, the four enhancements one interpolation with a strength per sample,
and each of the others a few tensor operations on a slice. On a CPU (B=32, 3x32x32, one thread) that takes 0.8 ms;
torchvision's functions take 2.4 ms on samples grouped by operation and sign, and 3.5 ms sample by sample. Tests compare
every operation with torchvision's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import IntEnum
from itertools import accumulate
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from feddbp_client.training.pixel_types import UNIT_RANGE, FloatRange, PixelValues, movable

_PER_SAMPLE: Final = 2
_SEVERITY: Final = 9 / 30
"""Magnitude 9 of 0..30, as a share of the largest."""
_SHEAR: Final = 0.3 * _SEVERITY
_TRANSLATION: Final = 150 / 331 * _SEVERITY
"""As a share of the side."""
_ROTATION: Final = math.radians(30 * _SEVERITY)
_ENHANCEMENT: Final = 0.9 * _SEVERITY
_POSTERIZE_LEVELS: Final = 1 << round(8 - 4 * _SEVERITY)
_SOLARIZE_FROM: Final = 1 - _SEVERITY
"""As a share of white."""
_LUMA: Final = (0.2989, 0.587, 0.114)
_BINS: Final = 256


class Operation(IntEnum):
    """Operations of one kind are adjacent, so that samples that are sorted by operation are sorted by kind."""

    IDENTITY = 0
    SHEAR_X = 1
    SHEAR_Y = 2
    TRANSLATE_X = 3
    TRANSLATE_Y = 4
    ROTATE = 5
    BRIGHTNESS = 6
    COLOR = 7
    CONTRAST = 8
    SHARPNESS = 9
    POSTERIZE = 10
    SOLARIZE = 11
    AUTOCONTRAST = 12
    EQUALIZE = 13


class RandAugment:
    def __init__(self, height: int, width: int, *, float_range: FloatRange = UNIT_RANGE) -> None:
        self._matrices = _matrices(height, width)
        self._float_range = float_range

    def __call__(self, pixels: Tensor, generator: torch.Generator, /) -> Tensor:
        drawn = (_PER_SAMPLE, len(pixels))
        operations = torch.randint(len(Operation), drawn, generator=generator)
        negative = torch.randint(2, drawn, generator=generator)
        return self.apply(pixels, operations, negative)

    def apply(self, pixels: Tensor, operations: Tensor, negative: Tensor) -> Tensor:
        """Applies to each sample the operations in its column, in turn.

        Both int64 [n, b] on the CPU; `negative` is 1 for the other direction of operations that have one.
        """
        values, stored = PixelValues.of(pixels.dtype, self._float_range), movable(pixels)
        for chosen, mirrored in zip(operations, negative, strict=True):
            order = chosen.argsort(stable=True)
            stored = stored.index_select(0, order.to(pixels.device))
            self._apply_sorted(stored, values, chosen[order], mirrored[order])
            stored = stored.index_select(0, order.argsort().to(pixels.device))
        return stored.view(pixels.dtype)

    def _apply_sorted(self, stored: Tensor, values: PixelValues, operations: Tensor, negative: Tensor) -> None:
        """Changes samples in place that are sorted by operation: those of an operation are a slice."""
        starts = [0, *accumulate(torch.bincount(operations, minlength=len(Operation)).tolist())]
        moved = slice(starts[Operation.SHEAR_X], starts[Operation.BRIGHTNESS])
        if moved.start < moved.stop:
            matrices = self._matrices[operations[moved], negative[moved]].to(stored.device)
            values.write(_moved(values.read(stored[moved]), matrices), stored[moved])
        enhanced = slice(starts[Operation.BRIGHTNESS], starts[Operation.POSTERIZE])
        if enhanced.start < enhanced.stop:
            strength = (2 * negative[enhanced] - 1).mul(_ENHANCEMENT).to(stored.device)
            bounds = [start - enhanced.start for start in starts]
            values.write(_enhanced(values.read(stored[enhanced]), bounds, strength, values), stored[enhanced])
        for operation, tone in _TONES.items():
            part = slice(starts[operation], starts[operation + 1])
            if part.start < part.stop:
                values.write(tone(values.read(stored[part]), values), stored[part])


def _matrices(height: int, width: int) -> Tensor:
    """[operation, negative, 2, 3]: from an output pixel (x, y, 1) to its source, in the coordinates of grid_sample."""
    found = torch.eye(2, 3).repeat(len(Operation), 2, 1, 1)
    for negative, sign in enumerate((1, -1)):
        shear, sine, cosine = sign * _SHEAR, sign * math.sin(_ROTATION), math.cos(_ROTATION)
        # shears leave the top or the left edge in place, rotations the centre
        for operation, matrix in {
            Operation.SHEAR_X: [[1, shear, shear * height / 2], [0, 1, 0]],
            Operation.SHEAR_Y: [[1, 0, 0], [shear, 1, shear * width / 2]],
            Operation.TRANSLATE_X: [[1, 0, -sign * int(_TRANSLATION * width)], [0, 1, 0]],
            Operation.TRANSLATE_Y: [[1, 0, 0], [0, 1, -sign * int(_TRANSLATION * height)]],
            Operation.ROTATE: [[cosine, -sine, 0], [sine, cosine, 0]],
        }.items():
            found[operation, negative] = torch.tensor(matrix)
    # from pixels, counted from the centre, to -1..1 on both axes
    half = torch.tensor([width / 2, height / 2, 1.0])
    return found * half / half[:2, None]


def _moved(images: Tensor, matrices: Tensor) -> Tensor:
    """Each image under its own affine map: the nearest pixel, and zero outside."""
    height, width = images.shape[2:]
    x = torch.linspace(1 / width - 1, 1 - 1 / width, width, device=images.device)
    y = torch.linspace(1 / height - 1, 1 - 1 / height, height, device=images.device).unsqueeze(1)
    along_x, along_y, offset = matrices[..., None, None].unbind(2)
    # by broadcasting, [n, 2, height, width]: the matrix product of F.affine_grid takes four times as long
    source = torch.addcmul(torch.addcmul(offset, along_y, y), along_x, x).permute(0, 2, 3, 1)
    return F.grid_sample(images, source, mode="nearest", padding_mode="zeros", align_corners=False)


def _enhanced(images: Tensor, starts: Sequence[int], strength: Tensor, values: PixelValues) -> Tensor:
    """Moves each image towards a degenerate form of itself or, with a negative strength, away from it."""
    degenerate = torch.zeros_like(images)  # black, for brightness
    for operation, form in _DEGENERATES.items():
        part = slice(starts[operation], starts[operation + 1])
        if part.start < part.stop:
            degenerate[part] = form(images[part], values)
    return images.lerp_(degenerate, strength.view(-1, 1, 1, 1)).clamp_(0, values.white)


def _grey(images: Tensor, values: PixelValues) -> Tensor:
    if images.shape[1] == len(_LUMA):
        red, green, blue = images.unbind(1)
        grey = red.mul(_LUMA[0]).add_(green, alpha=_LUMA[1]).add_(blue, alpha=_LUMA[2]).unsqueeze_(1)
    else:
        grey = images.mean(1, keepdim=True)
    return grey.floor_() if values.whole else grey


def _mean_grey(images: Tensor, values: PixelValues) -> Tensor:
    return _grey(images, values).mean((1, 2, 3), keepdim=True)


def _blurred(images: Tensor, values: PixelValues) -> Tensor:
    """The mean of 3x3 pixels in which the middle one counts five times; the border as it is."""
    rows = images[..., :-2] + images[..., 1:-1] + images[..., 2:]
    blurred = images.clone()
    inner = blurred[..., 1:-1, 1:-1]
    inner.mul_(4).add_(rows[..., :-2, :]).add_(rows[..., 1:-1, :]).add_(rows[..., 2:, :]).div_(13)
    if values.whole:
        inner.add_(0.5).floor_()  # round_ takes ten times as long on a CPU
    return blurred


_DEGENERATES: Final[dict[Operation, Callable[[Tensor, PixelValues], Tensor]]] = {
    Operation.COLOR: _grey,
    Operation.CONTRAST: _mean_grey,
    Operation.SHARPNESS: _blurred,
}


def _posterize(images: Tensor, values: PixelValues) -> Tensor:
    step = values.interval(_POSTERIZE_LEVELS)
    return images.div_(step).floor_().clamp_(0, _POSTERIZE_LEVELS - 1).mul_(step)


def _solarize(images: Tensor, values: PixelValues) -> Tensor:
    inverted = images.clone().ge_(_SOLARIZE_FROM * values.white)
    # |x - white| is the inverted value; torch.where takes ten times as long on a CPU
    return images.sub_(inverted, alpha=values.white).abs_()


def _autocontrast(images: Tensor, values: PixelValues) -> Tensor:
    darkest, brightest = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    span, varies = brightest - darkest, brightest > darkest
    scale = torch.where(varies, span.mul_(1 / values.white), 1)
    return images.sub_(torch.where(varies, darkest, 0)).div_(scale).clamp_(0, values.white)


def _equalize(images: Tensor, values: PixelValues) -> Tensor:
    """Equalises the histogram of each channel as Pillow does, in 256 bins."""
    flat = images.flatten(2)
    bins = flat.div(values.interval(_BINS)).long().clamp_(0, _BINS - 1)
    counts = bins.new_zeros(*bins.shape[:2], _BINS)
    counts.scatter_add_(2, bins, bins.new_ones(()).expand_as(bins))
    below = counts.cumsum(2) - counts
    # the pixels below the brightest bin in use, shared out among the steps between bins
    step = below.gather(2, bins.amax(2, keepdim=True)) // (_BINS - 1)
    table = ((below + step // 2) // step.clamp(min=1)).clamp_(max=_BINS - 1)
    equalised = table.gather(2, bins) * (values.white / (_BINS - 1))
    return torch.where(step > 0, equalised, flat).view_as(images)


_TONES: Final[dict[Operation, Callable[[Tensor, PixelValues], Tensor]]] = {
    Operation.POSTERIZE: _posterize,
    Operation.SOLARIZE: _solarize,
    Operation.AUTOCONTRAST: _autocontrast,
    Operation.EQUALIZE: _equalize,
}
