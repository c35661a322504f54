"""Single images, resized to a client's input as its training images were."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from data_samples import flat, pixels
from PIL import Image

from feddbp_client.data import DataError, load_private_data
from feddbp_client.data.decoding import fitted
from feddbp_client.data.images import in_memory
from feddbp_client.data.readers.digits import read_digits

if TYPE_CHECKING:
    from pathlib import Path


def test_a_published_digit_is_resized_as_in_training(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    for original, trained in zip(load_digits().images[:20], in_memory(read_digits().images), strict=False):
        Image.fromarray(np.rint(original * (255 / 16)).astype(np.uint8)).save(tmp_path / "digit.png")
        assert np.array_equal(fitted(tmp_path / "digit.png", (1, 16, 16), origin="digit"), trained)


def test_a_photograph_is_resized_as_in_a_folder(tmp_path: Path) -> None:
    for name in ("fern", "rose"):
        (tmp_path / name).mkdir()
        Image.fromarray(pixels(1, side=40)[0][:30]).save(tmp_path / name / "first.png")
    (trained, _) = in_memory(load_private_data(tmp_path, classes=2).train.images)
    assert trained.shape == (30, 30, 3)
    assert np.array_equal(fitted(tmp_path / "fern" / "first.png", (3, 30, 30), origin="fern"), trained)


def test_an_image_of_the_right_shape_is_unchanged() -> None:
    (colour,) = pixels(1, side=8)
    assert np.array_equal(fitted(colour, (3, 8, 8), origin="image"), colour)
    grey = colour[..., :1]
    assert np.array_equal(fitted(grey, (1, 8, 8), origin="image"), grey)
    assert np.array_equal(fitted(grey[..., 0], (3, 8, 8), origin="image"), np.repeat(grey, 3, axis=2))


def test_height_and_width_may_differ() -> None:
    assert fitted(flat((9, 9, 9), 50, 20), (1, 12, 34), origin="image").shape == (12, 34, 1)


@pytest.mark.parametrize(
    "picture", [b"no image", np.zeros((2, 2), dtype=np.float32), np.zeros((2, 2, 7), dtype=np.uint8)]
)
def test_an_unreadable_image_is_named(picture: bytes) -> None:
    with pytest.raises(DataError, match=r"^holiday\.jpg: "):
        fitted(picture, (3, 8, 8), origin="holiday.jpg")
