from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_samples import deep_colour_png, encoded, flat, write_image
from PIL import Image

from feddbp_client.data import DataError, ImageParts, load_private_data
from feddbp_client.data.images import in_memory

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


def test_grey_palette_and_transparent_images_become_rgb(tmp_path: Path) -> None:
    folder = tmp_path / "any"
    folder.mkdir()
    Image.fromarray(np.full((8, 8), 200, dtype=np.uint8)).save(folder / "1.png")
    Image.fromarray(RED).convert("P").save(folder / "2.png")
    Image.fromarray(RED).convert("RGBA").save(folder / "3.png")
    images = in_memory(load(tmp_path, classes=1).train.images)
    assert images.dtype == np.uint8
    assert images[:, 0, 0].tolist() == [[200] * 3, [255, 0, 0], [255, 0, 0]]


def test_a_photograph_is_rotated_by_its_exif_orientation(tmp_path: Path) -> None:
    (tmp_path / "any").mkdir()
    picture = Image.fromarray(np.concatenate([RED, BLUE], axis=1))
    exif = picture.getexif()
    exif[0x0112] = 6  # rotate by a quarter to the right
    picture.save(tmp_path / "any" / "1.png", exif=exif)
    (image,) = in_memory(load(tmp_path, classes=1, image_size=8).train.images)
    assert image[0, 0].tolist() == [255, 0, 0]
    assert image[-1, 0].tolist() == [0, 0, 255]


@pytest.mark.parametrize(
    ("stored", "suffix", "read"),
    [
        (np.uint16, "png", np.uint16),
        (np.uint16, "tif", np.uint16),
        (np.uint16, "pgm", np.uint16),
        (np.float32, "tif", np.float32),
        (np.int32, "tif", np.float32),
    ],
)
def test_deeper_pixels_keep_their_values(tmp_path: Path, stored: type, suffix: str, read: type) -> None:
    grey: np.ndarray = np.arange(64).reshape(8, 8).astype(stored) * 1000
    (tmp_path / "any").mkdir()
    Image.fromarray(grey).save(tmp_path / "any" / f"1.{suffix}")
    (image,) = in_memory(load(tmp_path, classes=1).train.images)
    assert image.dtype == read
    assert all(np.array_equal(image[..., channel], grey) for channel in range(3))


@pytest.mark.parametrize("stored", [np.uint16, np.float32])
def test_deeper_pixels_keep_their_range_when_they_are_scaled(tmp_path: Path, stored: type) -> None:
    (tmp_path / "any").mkdir()
    Image.fromarray(np.repeat(np.array([[0, 60_000]], dtype=stored), 2, axis=0)).save(tmp_path / "any" / "1.tif")
    (image,) = in_memory(load(tmp_path, classes=1, image_size=4).train.images)
    assert image[0, [0, 3], 0].tolist() == [0, 60_000]
    assert 10_000 < image[0, 1, 0] < image[0, 2, 0] < 50_000


def test_images_of_8_bits_among_others_of_16_are_read_as_16(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    write_image(tmp_path / "any" / "1.png", flat((0, 100, 255)))
    Image.fromarray(np.full((8, 8), 51_455, dtype=np.uint16)).save(tmp_path / "any" / "2.png")
    images = in_memory(load(tmp_path, classes=1).train.images)
    assert images.dtype == np.uint16
    assert images[:, 0, 0].tolist() == [[0, 25_700, 65_535], [51_455] * 3]
    assert "1 of 2 images have 8 bits, the others 16; all are read as 16" in caplog.text


def test_floats_and_integers_in_one_folder_are_refused(tmp_path: Path) -> None:
    write_image(tmp_path / "train" / "any" / "1.png", RED)
    (tmp_path / "test" / "any").mkdir(parents=True)
    Image.fromarray(np.zeros((8, 8), dtype=np.float32)).save(tmp_path / "test" / "any" / "2.tif")
    with pytest.raises(DataError, match=r"2\.tif: has float pixels, .*1\.png uint8: they have no common scale"):
        load(tmp_path, classes=1)


def test_colours_of_16_bits_are_read_as_8_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "any").mkdir()
    (tmp_path / "any" / "1.png").write_bytes(deep_colour_png(51_455))
    images = in_memory(load(tmp_path, classes=1).train.images)
    assert images[0, 0, 0].tolist() == [200] * 3
    assert "1 of 1 images have 16 bits per colour channel, of which 8 are read; an npz keeps all" in caplog.text


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_pixels_that_are_not_finite_are_refused_by_name(tmp_path: Path, value: float) -> None:
    (tmp_path / "any").mkdir()
    for name, pixel in (("1", 0.5), ("2", value)):
        Image.fromarray(np.full((8, 8), pixel, dtype=np.float32)).save(tmp_path / "any" / f"{name}.tif")
    with pytest.raises(DataError, match=r"any/2\.tif \(NaN or infinite pixels\); replace or remove"):
        load(tmp_path, classes=1, image_size=4)


@pytest.mark.parametrize(
    ("sizes", "image_size", "line"),
    [
        (
            [(640, 480), (1000, 700)],
            None,
            "2 images, 640x480 to 1000x700, scaled to 64x64 (aspect not kept); set the run's --image-size to change it",
        ),
        ([(20, 12), (20, 12)], 30, "2 images, 20x12, scaled to 30x30 (aspect not kept); the run's --image-size"),
    ],
)
def test_the_log_says_what_is_scaled_to_what(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    sizes: list[tuple[int, int]],
    image_size: int | None,
    line: str,
) -> None:
    caplog.set_level("INFO")
    for number, (width, height) in enumerate(sizes):
        write_image(tmp_path / "any" / f"{number}.png", flat((9, 9, 9), width, height))
    load(tmp_path, classes=1, image_size=image_size)
    assert caplog.messages == [f"{tmp_path}: {line}"]


def test_the_log_says_nothing_of_images_that_keep_their_size(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    write_image(tmp_path / "any" / "1.png", flat((9, 9, 9), 20, 20))
    load(tmp_path, classes=1)
    load(tmp_path, classes=1, image_size=20)
    assert caplog.messages == []


def damaged_folder(path: Path, *, damaged: int) -> Path:
    """Two images of `b`, and in `a` a sound one, a truncated one and some that are none."""
    write_image(path / "a" / "good.png", RED)
    write_image(path / "a" / "short.png", np.random.default_rng(0).integers(0, 255, (9, 9, 3), dtype=np.uint8))
    (path / "a" / "short.png").write_bytes((path / "a" / "short.png").read_bytes()[:-60])
    for number in range(damaged):
        (path / "a" / f"{number:02d}.png").write_bytes(b"no image")
    for number in range(2):
        write_image(path / "b" / f"{number}.png", RED)
    return path


def test_all_unreadable_files_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(DataError) as refused:
        load(damaged_folder(tmp_path, damaged=2), classes=2)
    text = str(refused.value)
    named = "a/00.png (not an image), a/01.png (not an image), a/short.png ("
    assert text.startswith(f"{tmp_path}: 3 of 6 files are not readable images: {named}")
    assert text.endswith("; replace or remove them, or give --skip-unreadable")
    assert "\n" not in text


def test_of_many_unreadable_files_the_first_are_named_and_a_command_lists_all(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"a/19\.png \(not an image\) and 6 more; `feddbp data check .*` lists all; replace"
    ):
        load(damaged_folder(tmp_path, damaged=25), classes=2)


def test_unreadable_files_can_be_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    parts = load(damaged_folder(tmp_path, damaged=2), classes=2, skip_unreadable=True)
    assert (parts.train.labels.tolist(), len(parts.train.images)) == ([0, 1, 1], 3)
    assert [name.partition(" ")[0] for name in parts.skipped] == ["a/00.png", "a/01.png", "a/short.png"]
    assert "3 files are left out: a/00.png (not an image)" in caplog.text


def test_a_folder_of_unreadable_files_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="1 of 1 files are not readable images"):
        load(tmp_path, classes=1, skip_unreadable=True)


def test_files_are_sorted_folder_by_folder(tmp_path: Path) -> None:
    """As by the parts of their paths: the separator does not count as a character."""
    for number, name in enumerate(("b/1.png", "b/2.png", "b.png", "b-1.png", "B.png")):
        write_image(tmp_path / "any" / name, flat((number, 0, 0)))
    images = in_memory(load(tmp_path, classes=1).train.images)
    assert images[:, 0, 0, 0].tolist() == [4, 0, 1, 3, 2]


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
    with pytest.raises(DataError, match=r"a/2\.png \("):
        load(tmp_path, classes=1)


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match="holds no images"):
        load(tmp_path, classes=1)


def test_a_size_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="image size is 0"):
        load(tmp_path, image_size=0)


def test_a_folder_of_another_user_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_image(tmp_path / "rose" / "1.png", RED)
    write_image(tmp_path / "fern" / "1.png", GREEN)
    scandir = os.scandir

    def refuse(path: str | Path) -> Any:  # root may read any folder
        if Path(path).name == "fern":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=r"fern: cannot be read: Permission denied"):
        load(tmp_path)


def test_data_that_may_not_be_looked_at_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x: cannot be read: File name too long"):
        load(tmp_path / ("x" * 300))


@pytest.mark.parametrize("options", [{}, {"class_names": ("cat", "dog")}])
def test_a_folder_without_class_folders_says_what_to_do(options: dict[str, Any], tmp_path: Path) -> None:
    write_image(tmp_path / "1.png", RED)
    with pytest.raises(DataError, match=r"has no folders; put the images of each class into a folder of its name$"):
        load(tmp_path, **options)
