"""The type and range of a client's pixels, which decide how they become network input."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias, get_args, runtime_checkable

import numpy as np

from feddbp_client.data.images import DataError, in_memory

if TYPE_CHECKING:
    from feddbp_client.data.images import ImageRows

PixelType: TypeAlias = Literal["uint8", "uint16", "float32"]

_WIDEST: Final = float(np.finfo(np.float32).max)


@dataclass(frozen=True, kw_only=True)
class PixelRange:
    """The type of stored pixels, and the values that become -1 and 1 as network input."""

    dtype: PixelType
    low: float
    high: float

    def __post_init__(self) -> None:
        if self.dtype not in get_args(PixelType):
            raise ValueError(f"{self.dtype!r} is not a type of pixels")
        if self.dtype == "float32":
            # Scaling subtracts in float32. NaN fails both comparisons.
            valid = self.low < self.high and self.high - self.low <= _WIDEST
        else:
            valid = (self.low, self.high) == (0, np.iinfo(self.dtype).max)
        if not valid:
            raise ValueError(f"{self.low} to {self.high} is not a range of {self.dtype} pixels")

    def shares_scale(self, other: PixelRange) -> bool:
        """Whether a network trained on one takes the other: integers are scaled by type, floats by their values."""
        return self == other or "float32" not in (self.dtype, other.dtype)

    def __str__(self) -> str:
        return f"{self.dtype}, from {self.low:g} to {self.high:g}"


BYTES: Final = PixelRange(dtype="uint8", low=0, high=255)
WORDS: Final = PixelRange(dtype="uint16", low=0, high=65535)


@runtime_checkable
class MeasuredRows(Protocol):
    """Float images whose lowest and highest pixel is known without reading them."""

    def extremes(self) -> tuple[float, float]: ...


def pixel_range(images: ImageRows) -> PixelRange:
    """The range of a client's training images: that of the type for integers, of the values for floats."""
    if images.dtype == np.uint8:
        return BYTES
    if images.dtype == np.uint16:
        return WORDS
    if isinstance(images, MeasuredRows):
        return float_range(*images.extremes())
    pixels = in_memory(images)
    return float_range(float(pixels.min()), float(pixels.max()))


def float_range(low: float, high: float) -> PixelRange:
    """0 to 1 for values within, so that clients with such images share a scale; else from the lowest to the highest."""
    if low >= 0 and high <= 1:
        return PixelRange(dtype="float32", low=0, high=1)
    if low == high:
        high = low + max(1.0, math.fabs(low))
    try:
        return PixelRange(dtype="float32", low=low, high=high)
    except ValueError:
        raise DataError(f"float pixels from {low:g} to {high:g} cannot be scaled; store them in another unit") from None
