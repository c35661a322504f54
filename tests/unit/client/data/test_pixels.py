"""Pixels of 8 and 16 bits and floats: their range, and how they become network input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from data_samples import pixels

from feddbp_client.data import DataError, ImageParts, LabelledImages, private_shard
from feddbp_client.data.batches import channels_first, scaled
from feddbp_client.data.pixels import BYTES, WORDS, PixelRange, float_range, pixel_range


def test_bytes_are_scaled_with_the_bits_of_earlier_versions() -> None:
    every_byte = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(scaled(every_byte), every_byte.float().div_(127.5).sub_(1))
    assert torch.equal(scaled(every_byte, BYTES), scaled(every_byte))


def test_every_uint16_has_its_place_between_minus_one_and_one() -> None:
    stored = channels_first(np.arange(65536, dtype=np.uint16).reshape(1, 256, 256, 1))
    found = scaled(stored, WORDS).flatten()
    expected = torch.arange(65536, dtype=torch.float64) / 32767.5 - 1
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-7)
    assert found[[0, -1]].tolist() == [-1, 1]
    assert (found.diff() > 0).all()


def test_uint16_is_handed_on_as_a_type_that_every_device_moves_and_scaled_as_both() -> None:
    values = np.array([0, 1, 40_000, 65_535], dtype=np.uint16).reshape(1, 2, 2, 1)
    stored = channels_first(values)
    assert stored.dtype == torch.int16
    assert torch.equal(scaled(stored, WORDS), scaled(stored.view(torch.uint16), WORDS))


def test_floats_are_scaled_by_the_ends_of_their_range() -> None:
    hounsfield = torch.tensor([-1000.0, 0.0, 3000.0, 4000.0])
    assert scaled(hounsfield, float_range(-1000.0, 3000.0)).tolist() == [-1, -0.5, 1, 1.5]
    assert hounsfield.tolist() == [-1000, 0, 3000, 4000]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.1, 0.7, (0, 1)), (0.0, 1.0, (0, 1)), (0.0, 1.5, (0, 1.5)), (-0.5, 0.5, (-0.5, 0.5)), (7.0, 7.0, (7, 14))],
)
def test_float_images_within_0_and_1_share_that_range(low: float, high: float, expected: tuple[float, float]) -> None:
    found = float_range(low, high)
    assert (found.low, found.high) == expected


def test_floats_too_far_apart_to_subtract_are_refused() -> None:
    with pytest.raises(DataError, match=r"from -3e\+38 to 3e\+38 cannot be scaled"):
        float_range(-3e38, 3e38)


def test_the_range_is_that_of_the_clients_training_images_alone() -> None:
    images = pixels(40, side=2).astype(np.float32)
    images[:, 0, 0, 0] = np.arange(40) * 1000
    data = private_shard(ImageParts(LabelledImages(images, np.arange(40) % 2, ("a", "b"))), seed=1, client_id=3)
    train = data.train.images[np.arange(len(data.train))]
    assert data.pixels == PixelRange(dtype="float32", low=float(train.min()), high=float(train.max()))
    assert len(data.train) < len(images)


@pytest.mark.parametrize(("dtype", "expected"), [(np.uint8, BYTES), (np.uint16, WORDS)])
def test_the_range_of_integers_is_that_of_their_type(dtype: type, expected: PixelRange) -> None:
    assert pixel_range(np.full((2, 4, 4, 1), 7, dtype=dtype)) == expected


@pytest.mark.parametrize(
    "values",
    [
        {"dtype": "int8", "low": 0, "high": 255},
        {"dtype": "uint8", "low": 0, "high": 200},
        {"dtype": "float32", "low": 1.0, "high": 1.0},
        {"dtype": "float32", "low": 0.0, "high": float("nan")},
        {"dtype": "float32", "low": 0.0, "high": float("inf")},
    ],
)
def test_an_impossible_range_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"not a (type|range)"):
        PixelRange(**values)  # type: ignore[arg-type]
