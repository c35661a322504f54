from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from data_samples import encoded, flat, jpeg_keys, pixels

from feddbp_client.data import DataError, ImageParts, load_private_data
from feddbp_client.data.images import in_memory
from feddbp_client.data.readers.npz import class_names_in

if TYPE_CHECKING:
    from pathlib import Path


def save(path: Path, **arrays: Any) -> Path:
    np.savez_compressed(path, **arrays)
    return path


def load(path: Path, classes: int = 3, **options: Any) -> ImageParts:
    return load_private_data(path, classes=classes, **options)


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    return tmp_path / "mine.npz"


def test_raw_pixels_are_read_as_stored(npz: Path) -> None:
    images, labels = pixels(4), np.array([0, 1, 2, 1])
    save(npz, x_train=images, y_train=labels, x_test=images[:2], y_test=labels[:2], classes=np.array(["a", "b", "c"]))
    parts = load(npz)
    assert parts.train.class_names == ("a", "b", "c")
    assert np.array_equal(in_memory(parts.train.images), images)
    assert np.array_equal(parts.train.labels, labels)
    assert parts.test is not None
    assert np.array_equal(in_memory(parts.test.images), images[:2])
    assert len(parts.pooled()) == 6


def test_jpegs_are_decoded_and_grey_ones_become_colour(npz: Path) -> None:
    files = [encoded(flat((250, 10, 10)), "JPEG"), encoded(np.full((8, 8), 99, dtype=np.uint8), "JPEG")]
    save(npz, **jpeg_keys(files, "train"), y_train=np.array([0, 2], dtype=np.uint8))
    train = load(npz).train
    assert train.images.shape == (2, 8, 8, 3)
    first, second = in_memory(train.images)
    assert np.abs(first[0, 0].astype(int) - (250, 10, 10)).max() < 6
    assert (second == 99).all()
    assert train.labels.dtype == np.int64


def test_without_a_test_part_or_with_an_empty_one_there_is_none(tmp_path: Path) -> None:
    kept = {"x_train": pixels(2), "y_train": np.array([0, 1])}
    assert load(save(tmp_path / "a.npz", **kept)).test is None
    empty = {"x_test": pixels(0), "y_test": np.array([], dtype=np.int64)}
    assert load(save(tmp_path / "b.npz", **kept, **empty)).test is None


def test_grey_images_without_a_channel_axis_get_one(npz: Path) -> None:
    train = load(save(npz, x_train=pixels(2)[..., 0], y_train=np.array([0, 1]))).train
    assert train.images.shape == (2, 8, 8, 1)
    assert train.class_names == ("0", "1", "2")


def test_labels_follow_the_runs_class_names(npz: Path) -> None:
    save(npz, x_train=pixels(3), y_train=np.array([0, 1, 1]), classes=np.array(["cat", "dog"]))
    train = load(npz, class_names=("dog", "emu", "cat")).train
    assert train.labels.tolist() == [2, 0, 0]
    assert train.class_names == ("dog", "emu", "cat")


def test_a_class_that_is_not_one_of_the_runs_is_named(npz: Path) -> None:
    save(npz, x_train=pixels(2), y_train=np.array([0, 1]), classes=np.array(["cat", "yak"]))
    with pytest.raises(DataError, match=r"mine\.npz: class 'yak' is not one of the run's classes"):
        load(npz, class_names=("dog", "emu", "cat"))


def test_image_size_resizes(npz: Path) -> None:
    save(npz, x_train=pixels(2), y_train=np.array([0, 1]), x_test=pixels(1), y_test=np.array([0]))
    parts = load(npz, image_size=5)
    assert parts.train.images.shape == (2, 5, 5, 3)
    assert parts.test is not None
    assert parts.test.images.shape == (1, 5, 5, 3)


def with_pixel(value: float) -> np.ndarray:
    images = np.zeros((2, 8, 8, 3))
    images[1, 4, 2, 1] = value
    return images


@pytest.mark.parametrize(
    ("stored", "read"), [("u2", np.uint16), (">u2", np.uint16), ("f4", np.float32), ("f8", np.float32)]
)
def test_deeper_pixels_keep_their_values(npz: Path, stored: str, read: type) -> None:
    images = (pixels(2) * 201.0).astype(stored)
    found = in_memory(load(save(npz, x_train=images, y_train=np.array([0, 1]))).train.images)
    assert found.dtype == read
    assert np.array_equal(found, images)


@pytest.mark.parametrize("stored", [np.uint16, np.float32])
def test_deeper_pixels_keep_their_range_when_they_are_resized(npz: Path, stored: type) -> None:
    images: np.ndarray = np.repeat(np.array([[[[0], [65535]]]], dtype=stored), 2, axis=0)
    found = in_memory(load(save(npz, x_train=images, y_train=np.array([0, 1])), image_size=4).train.images)
    assert found.dtype == stored
    assert found[0, 0, [0, 3], 0].tolist() == [0, 65535]
    assert 0 < found[0, 0, 1, 0] < found[0, 0, 2, 0] < 65535


GOOD = {"x_train": pixels(2), "y_train": np.array([0, 1])}
JPEG = encoded(flat((1, 2, 3)), "JPEG")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y_train": GOOD["y_train"]}, "neither x_train nor jpg_train"),
        ({"x_train": GOOD["x_train"]}, "has no y_train"),
        ({"x_train": pixels(2), "y_train": np.array([0, 3])}, r"label 3 is outside 0\.\.2"),
        ({"x_train": pixels(2), "y_train": np.array([0, -1])}, r"label -1 is outside 0\.\.2"),
        ({"x_train": pixels(2), "y_train": np.array([0])}, "2 images but 1 labels"),
        ({"x_train": pixels(2).astype(np.int32), "y_train": np.array([0, 1])}, "int32, expected uint8"),
        ({"x_train": with_pixel(np.nan), "y_train": np.array([0, 1])}, "image 1 has NaN or infinite pixels"),
        ({"x_train": with_pixel(1e99), "y_train": np.array([0, 1])}, "image 1 has NaN or infinite pixels"),
        ({"x_train": pixels(2), "y_train": np.array([0.0, 1.0])}, "labels are float64"),
        ({"x_train": pixels(2), "y_train": np.array([[0], [1]])}, "labels have shape"),
        ({"x_train": pixels(2).transpose(0, 3, 1, 2), "y_train": np.array([0, 1])}, "images have shape"),
        ({"x_train": pixels(0), "y_train": np.array([], dtype=int)}, "train part: holds no images"),
        ({**GOOD, "classes": np.array(["only", "two"])}, "names 2 classes, expected 3"),
        ({**GOOD, "classes": np.array([1, 2, 3])}, "expected a list of names"),
        ({**GOOD, "x_test": pixels(1, side=9), "y_test": np.array([0])}, "training images are"),
        ({**jpeg_keys([JPEG], "train"), "y_train": np.array([0, 1])}, "expected 3 integers"),
        (
            {**jpeg_keys([JPEG], "train"), "off_train": np.array([0, 9**9]), "y_train": np.array([0])},
            "is not increasing",
        ),
        ({**jpeg_keys([JPEG], "train"), "off_train": np.array([9, 4]), "y_train": np.array([0])}, "is not increasing"),
        ({**jpeg_keys([b"junk!"], "train"), "y_train": np.array([0])}, "image 0 of jpg_train: not a readable image"),
        (
            {**jpeg_keys([JPEG, encoded(flat((0, 0, 0), 9), "JPEG")], "train"), "y_train": np.array([0, 1])},
            "image 1 of jpg_train: is 9x8, others 8x8",
        ),
        ({**jpeg_keys([], "train"), "y_train": np.array([], dtype=int)}, "holds no images"),
    ],
)
def test_an_invalid_file_is_described_in_one_line(npz: Path, arrays: dict[str, Any], message: str) -> None:
    save(npz, **arrays)
    with pytest.raises(DataError, match=rf"^.*mine\.npz.*{message}") as caught:
        load(npz)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array(["a", "b"]), "mine.npz: train part: labels are <U1, expected integers"),
        (np.array([0.0, 1.0]), "mine.npz: train part: labels are float64, expected integers"),
        (np.eye(2), "labels have shape (2, 2), expected [N]; of one-hot labels give labels.argmax(axis=1)"),
        (np.array([[0], [1]]), "mine.npz: train part: labels have shape (2, 1), expected [N]"),
    ],
)
def test_classes_are_not_counted_in_labels_that_are_no_class_numbers(
    npz: Path, labels: np.ndarray, message: str
) -> None:
    with pytest.raises(DataError) as caught:
        class_names_in(save(npz, x_train=pixels(2), y_train=labels))
    assert str(caught.value).endswith(message)


def test_an_empty_test_part_adds_no_classes_whatever_its_type(npz: Path) -> None:
    save(npz, **GOOD, x_test=pixels(0), y_test=np.array([]))
    assert class_names_in(npz) == ["0", "1"]


def test_pickled_arrays_are_not_opened(npz: Path) -> None:
    save(npz, x_train=np.array([{"any": "object"}]), y_train=np.array([0]))
    with pytest.raises(DataError, match=r"mine\.npz: x_train is damaged"):
        load(npz)


def test_truncations_and_flipped_bytes_are_detected(npz: Path) -> None:
    out = io.BytesIO()
    np.savez_compressed(out, x_train=pixels(4), y_train=np.array([0, 1, 2, 1]))
    whole = out.getvalue()
    for length in range(0, len(whole) - 1, 97):
        npz.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"mine\.npz: "):
            load(npz)
    npz.write_bytes(whole[:400] + bytes([whole[400] ^ 255]) + whole[401:])
    with pytest.raises(DataError, match=r"mine\.npz: x_train is damaged"):
        load(npz)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.npz: no such file or folder"):
        load(tmp_path / "gone.npz")
    np.save(tmp_path / "array.npy", pixels(1))
    with pytest.raises(DataError, match=r"array\.npy: neither a folder of images nor an \.npz file"):
        load(tmp_path / "array.npy")
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    with pytest.raises(DataError, match=r"array\.npz: not an npz file"):
        load(tmp_path / "array.npz")


def test_class_names_must_fit_the_number_of_classes(npz: Path) -> None:
    save(npz, **GOOD)
    with pytest.raises(DataError, match="the run has 3 classes"):
        load(npz, class_names=("a", "b"))
    with pytest.raises(DataError, match="the run has 3 classes"):
        load(npz, class_names=("a", "b", "b"))


def test_a_file_is_read_once_for_many_clients(npz: Path) -> None:
    save(npz, **GOOD)
    assert load(npz) is load(npz)


def test_a_file_of_another_user_is_not_taken_for_one_of_another_format(
    npz: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(npz, x_train=pixels(2), y_train=np.array([0, 1]))

    def refuse(path: Path, *_: Any, **__: Any) -> Any:  # root may read any file
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("zipfile.is_zipfile", lambda path: False)  # as it says of a file that it cannot open
    monkeypatch.setattr("pathlib.Path.open", refuse)
    with pytest.raises(DataError, match=r"mine\.npz: cannot be read: Permission denied"):
        load(npz)


def test_channels_that_come_first_are_to_be_moved(npz: Path) -> None:
    save(npz, x_train=np.zeros((9, 3, 32, 32), np.uint8), y_train=np.zeros(9, np.int64))
    with pytest.raises(DataError) as refusal:
        load(npz)
    expected = "expected [N, H, W] or [N, H, W, 1 or 3]; move the channels last, by np.moveaxis(images, 1, 3)"
    assert str(refusal.value).endswith(f": images have shape (9, 3, 32, 32), {expected}")


@pytest.mark.parametrize(
    ("arrays", "named"), [({"images": pixels(2), "labels": np.arange(2)}, "images, labels"), ({}, "no arrays")]
)
def test_a_file_with_other_arrays_says_which_are_needed(arrays: dict[str, Any], named: str, npz: Path) -> None:
    save(npz, **arrays)
    with pytest.raises(DataError) as refusal:
        load(npz)
    assert f"has neither x_train nor jpg_train, but {named}; a client needs x_train of shape" in str(refusal.value)
