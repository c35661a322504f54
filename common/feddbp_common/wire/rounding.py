"""Rounding in a chosen direction to what a real type of the wire can represent."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from feddbp_common.wire.codec import WireType
from feddbp_common.wire.payload import FloatArray

_DROPPED = np.uint32(0xFFFF)
"""The bits of a float32 that bfloat16 does not have."""


def round_apart(values: FloatArray, upward: npt.NDArray[np.bool_], real_type: WireType) -> FloatArray:
    """Rounds values that are not negative up where marked, and down elsewhere.

    A marked value that is at least as large as an unmarked one stays so: rounding to the nearest could make them
    equal, or make both zero. Values above the largest of the type are unchanged, for the encoder to refuse.
    """
    if real_type is WireType.FLOAT16:
        return _to_float16(values, upward)
    if real_type is WireType.BFLOAT16:
        return _to_bfloat16(values, upward)
    return values


def _to_float16(values: FloatArray, upward: npt.NDArray[np.bool_]) -> FloatArray:
    is_in_range = values <= np.finfo(np.float16).max
    nearest = np.where(is_in_range, values, 0).astype(np.float16)
    too_low, too_high = upward & (nearest < values), ~upward & (nearest > values)
    nearest = np.where(too_low, np.nextafter(nearest, np.float16(np.inf)), nearest)
    nearest = np.where(too_high, np.nextafter(nearest, np.float16(0)), nearest)
    return np.where(is_in_range, nearest.astype(np.float32), values)


def _to_bfloat16(values: FloatArray, upward: npt.NDArray[np.bool_]) -> FloatArray:
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    step = np.where(upward, _DROPPED, np.uint32(0))
    rounded: FloatArray = ((bits + step) & ~_DROPPED).view(np.float32)
    return np.where(np.isfinite(rounded), rounded, values)
