"""Stored types of pixels, and their values as float32: of bytes, of words of 16 bits, and of floats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
from torch import Tensor

FloatRange: TypeAlias = tuple[float, float]
"""The values of black and white in images of floats."""
UNIT_RANGE: Final[FloatRange] = (0.0, 1.0)
_WORDS: Final = (torch.uint16, torch.int16)
_WORD_MASK: Final = 0xFFFF


def movable(pixels: Tensor) -> Tensor:
    """The same bits in a type that every operation takes which only moves pixels: int16 for words."""
    return pixels.view(torch.int16) if pixels.dtype == torch.uint16 else pixels


@dataclass(frozen=True)
class PixelValues:
    """The values that pixels of a type can have, counted from black: 0 to `white`, only integers if `whole`."""

    white: float
    whole: bool
    black: float = 0.0
    """What is stored for 0."""

    @classmethod
    def of(cls, dtype: torch.dtype, float_range: FloatRange) -> PixelValues:
        if dtype.is_floating_point:
            black, white = float_range
            return cls(white - black, whole=False, black=black)
        return cls(float(_WORD_MASK if dtype in _WORDS else torch.iinfo(dtype).max), whole=True)

    def interval(self, parts: int) -> float:
        """The width of one of `parts` equal intervals of the range."""
        return (self.white + self.whole) / parts

    def read(self, stored: Tensor) -> Tensor:
        """The values as float32, which holds every integer of up to 24 bits; `stored` is movable."""
        if stored.dtype == torch.int16:
            return (stored.int() & _WORD_MASK).float()
        return stored.float().sub_(self.black) if self.black else stored.float()

    def write(self, values: Tensor, stored: Tensor) -> None:
        """Stores values; what is between integers is truncated."""
        if stored.dtype == torch.int16:
            stored.copy_(values.int())  # a float beyond the range of int16 would not keep its bits
        else:
            stored.copy_(values + self.black if self.black else values)
