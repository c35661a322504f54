"""Rounding away from a boundary: what is at least as large stays so in half precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from feddbp_common.wire import Payload, WireType, decode, encode
from feddbp_common.wire.rounding import round_apart

HALF_TYPES = [WireType.FLOAT16, WireType.BFLOAT16]
not_negative = st.floats(0, 6e4, width=32)


def sent(values: Any, real_type: WireType) -> Any:
    encoded = encode(Payload(tensors={"x": values}), real_type=real_type)
    return decode(encoded.manifest, encoded.body()).tensors["x"]


@pytest.mark.parametrize("real_type", HALF_TYPES)
@given(values=st_numpy.arrays(np.float32, 12, elements=not_negative), data=st.data())
def test_marked_values_round_up_and_others_down_to_what_the_wire_keeps(
    real_type: WireType, values: Any, data: st.DataObject
) -> None:
    upward = data.draw(st_numpy.arrays(np.bool_, 12))
    rounded = round_apart(values, upward, real_type)
    assert rounded.dtype == np.float32
    np.testing.assert_array_equal(sent(rounded, real_type), rounded)
    assert np.all(rounded[upward] >= values[upward])
    assert np.all(rounded[~upward] <= values[~upward])
    nearest = sent(values, real_type)
    is_right_side = np.where(upward, nearest >= values, nearest <= values)
    np.testing.assert_array_equal(rounded[is_right_side], nearest[is_right_side])


@pytest.mark.parametrize("real_type", HALF_TYPES)
def test_values_below_the_smallest_of_the_type_stay_apart(real_type: WireType) -> None:
    values = np.array([3e-44, 2e-44], dtype=np.float32)
    first, second = round_apart(values, np.array([True, False]), real_type).tolist()
    assert first > second == 0


def test_float32_and_values_the_type_cannot_hold_are_unchanged() -> None:
    values = np.array([7e4, 1 / 3, np.nan], dtype=np.float32)
    marks = np.array([True, False, True])
    np.testing.assert_array_equal(round_apart(values, marks, WireType.FLOAT32), values)
    np.testing.assert_array_equal(round_apart(values, marks, WireType.FLOAT16)[[0, 2]], values[[0, 2]])
    largest = np.array([np.finfo(np.float32).max], dtype=np.float32)
    np.testing.assert_array_equal(round_apart(largest, np.array([True]), WireType.BFLOAT16), largest)
