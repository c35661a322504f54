from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from data_samples import encoded, flat, write_image
from PIL import Image

from feddbp_client.data import DataError, ImageParts, load_private_data
from feddbp_client.data.images import in_memory

if TYPE_CHECKING:
    from pathlib import Path

RED, GREEN, BLUE = flat((255, 0, 0)), flat((0, 255, 0)), flat((0, 0, 255))


def load(path: Path, classes: int = 2, **options: Any) -> ImageParts:
    return load_private_data(path, classes=classes, **options)


def test_each_folder_is_a_class_in_sorted_order(tmp_path: Path) -> None:
    write_image(tmp_path / "rose" / "1.png", RED)
    write_image(tmp_path / "fern" / "1.png", GREEN)
    write_image(tmp_path / "fern" / "deeper" / "2.PNG", BLUE)
    parts = load(tmp_path)
    assert parts.test is None
    assert parts.train.class_names == ("fern", "rose")
    assert parts.train.labels.tolist() == [0, 0, 1]
    assert in_memory(parts.train.images)[:, 0, 0].tolist() == [[0, 255, 0], [0, 0, 255], [255, 0, 0]]


def test_labels_follow_the_runs_class_names_which_may_be_more(tmp_path: Path) -> None:
    write_image(tmp_path / "rose" / "1.png", RED)
    write_image(tmp_path / "fern" / "1.png", GREEN)
    train = load(tmp_path, classes=3, class_names=("rose", "moss", "fern")).train
    assert train.labels.tolist() == [2, 0]
    assert train.class_names == ("rose", "moss", "fern")


def test_a_folder_that_is_not_a_class_of_the_run_is_named(tmp_path: Path) -> None:
    write_image(tmp_path / "rose" / "1.png", RED)
    write_image(tmp_path / "weed" / "1.png", GREEN)
    with pytest.raises(DataError, match="folder 'weed' is not one of the run's classes"):
        load(tmp_path, class_names=("rose", "fern"))


def test_without_names_the_folders_must_be_as_many_as_the_classes(tmp_path: Path) -> None:
    write_image(tmp_path / "rose" / "1.png", RED)
    with pytest.raises(DataError, match="has 1 class folders, the run has 2 classes"):
        load(tmp_path)


def test_an_empty_folder_counts_as_a_class(tmp_path: Path) -> None:
    write_image(tmp_path / "rose" / "1.png", RED)
    (tmp_path / "fern").mkdir()
    assert load(tmp_path).train.labels.tolist() == [1]


def test_train_and_test_folders_are_kept_apart(tmp_path: Path) -> None:
    write_image(tmp_path / "train" / "fern" / "1.png", GREEN)
    write_image(tmp_path / "test" / "rose" / "1.png", RED)
    parts = load(tmp_path)
    assert parts.train.class_names == ("fern", "rose")
    assert parts.train.labels.tolist() == [0]
    assert parts.test is not None
    assert parts.test.labels.tolist() == [1]


def test_a_train_folder_alone_has_no_test_part(tmp_path: Path) -> None:
    write_image(tmp_path / "train" / "fern" / "1.png", GREEN)
    write_image(tmp_path / "train" / "rose" / "1.png", RED)
    assert load(tmp_path).test is None


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    write_image(tmp_path / "train" / "1.png", GREEN)
    write_image(tmp_path / "tram" / "1.png", RED)
    assert load(tmp_path).train.class_names == ("train", "tram")


def test_a_third_part_is_an_error(tmp_path: Path) -> None:
    write_image(tmp_path / "train" / "fern" / "1.png", GREEN)
    write_image(tmp_path / "val" / "fern" / "1.png", GREEN)
    with pytest.raises(DataError, match="val: neither train nor test"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("first", "options", "side"),
    [((20, 12), {}, 12), ((300, 200), {}, 64), ((20, 12), {"image_size": 30}, 30)],
)
def test_all_images_get_one_square_size(
    tmp_path: Path, first: tuple[int, int], options: dict[str, int], side: int
) -> None:
    write_image(tmp_path / "a" / "1.png", flat((9, 9, 9), *first))
    write_image(tmp_path / "b" / "1.png", flat((7, 7, 7), 50, 40))
    assert load(tmp_path, **options).train.images.shape == (2, side, side, 3)


def test_grey_palette_transparent_and_16_bit_images_become_rgb(tmp_path: Path) -> None:
    folder = tmp_path / "any"
    folder.mkdir()
    Image.fromarray(np.full((8, 8), 200, dtype=np.uint8)).save(folder / "1.png")
    Image.fromarray(RED).convert("P").save(folder / "2.png")
    Image.fromarray(RED).convert("RGBA").save(folder / "3.png")
    Image.fromarray(np.full((8, 8), 0xC8FF, dtype=np.uint16)).save(folder / "4.png")
    images = in_memory(load(tmp_path, classes=1).train.images)
    assert images[:, 0, 0].tolist() == [[200] * 3, [255, 0, 0], [255, 0, 0], [200] * 3]


def test_a_photograph_is_rotated_by_its_exif_orientation(tmp_path: Path) -> None:
    (tmp_path / "any").mkdir()
    picture = Image.fromarray(np.concatenate([RED, BLUE], axis=1))
    exif = picture.getexif()
    exif[0x0112] = 6  # rotate by a quarter to the right
    picture.save(tmp_path / "any" / "1.png", exif=exif)
    (image,) = in_memory(load(tmp_path, classes=1, image_size=8).train.images)
    assert image[0, 0].tolist() == [255, 0, 0]
    assert image[-1, 0].tolist() == [0, 0, 255]


def test_32_bit_pixels_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "any").mkdir()
    Image.fromarray(np.zeros((8, 8), dtype=np.float32)).save(tmp_path / "any" / "1.tif")
    with pytest.raises(DataError, match=r"1\.tif: has float32 pixels, expected uint8"):
        load(tmp_path, classes=1)


def test_other_files_and_hidden_ones_are_ignored(tmp_path: Path) -> None:
    write_image(tmp_path / "a" / "1.png", RED)
    write_image(tmp_path / "b" / "1.png", RED)
    (tmp_path / "a" / "notes.txt").write_text("hello")
    (tmp_path / "a" / "._1.png").write_bytes(b"left by a Mac")
    (tmp_path / ".cache").mkdir()
    (tmp_path / "readme.md").write_text("hello")
    assert len(load(tmp_path).train) == 2


@pytest.mark.parametrize("content", [b"", b"no image", encoded(RED)[:45]])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes) -> None:
    write_image(tmp_path / "a" / "1.png", RED)
    (tmp_path / "a" / "2.png").write_bytes(content)
    with pytest.raises(DataError, match=r"a/2\.png: not a readable image"):
        load(tmp_path, classes=1)


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match="holds no images"):
        load(tmp_path, classes=1)


def test_a_size_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="image size is 0"):
        load(tmp_path, image_size=0)
