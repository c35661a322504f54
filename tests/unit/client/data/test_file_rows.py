"""Folders that are decoded when their images are read: the same pixels as in memory, from files or from the cache."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_samples import pixels, write_image
from PIL import Image

from feddbp_client.data import (
    CacheSpace,
    DataError,
    ImageParts,
    clear_dataset_cache,
    file_rows,
    load_private_data,
    private_shard,
)
from feddbp_client.data.decoding import decode
from feddbp_client.data.file_rows import FileRows
from feddbp_client.data.images import in_memory
from feddbp_client.data.readers import image_folder

COUNT, SIDE = 24, 6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, image in enumerate(pixels(COUNT, side=9)):
        write_image(tmp_path / "data" / f"class{number % 2}" / f"{number:02d}.png", image)
    return tmp_path / "data"


@pytest.fixture
def space(tmp_path: Path) -> CacheSpace:
    return CacheSpace(directory=tmp_path / "cache", size=10**9)


@pytest.fixture(autouse=True)
def nothing_fits_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_folder, "LARGEST_IN_MEMORY", 0)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were decoded."""
    names: list[str] = []

    def recorded(path: str, **options: Any) -> np.ndarray:
        names.append(Path(path).name)
        return decode(path, **options)

    monkeypatch.setattr(file_rows, "decode", recorded)
    return names


def load(path: Path, space: CacheSpace | None = None, classes: int = 2, *, skip_unreadable: bool = False) -> ImageParts:
    """As in a process that has just been started."""
    clear_dataset_cache()
    return load_private_data(path, classes=classes, image_size=SIDE, space=space, skip_unreadable=skip_unreadable)


def rows_of(parts: ImageParts) -> FileRows:
    assert isinstance(parts.train.images, FileRows)
    return parts.train.images


def test_a_large_folder_has_the_pixels_and_labels_of_a_small_one(
    folder: Path, space: CacheSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    lazy = load(folder, space).train
    monkeypatch.undo()
    small = load(folder).train
    assert isinstance(small.images, np.ndarray)
    assert isinstance(lazy.images, FileRows)
    assert (lazy.images.shape, lazy.images.dtype) == (small.images.shape, small.images.dtype)
    assert np.array_equal(lazy.labels, small.labels)
    for _ in ("decoded", "cached"):
        assert np.array_equal(in_memory(lazy.images), small.images)
        chosen = np.array([20, 3, 3, 0])
        assert np.array_equal(lazy.images[chosen], small.images[chosen])


def test_nothing_is_decoded_before_it_is_read_and_nothing_twice(
    folder: Path, space: CacheSpace, decoded: list[str]
) -> None:
    rows = rows_of(load(folder, space))
    assert decoded == []
    rows[np.array([0, 13])]
    assert sorted(decoded) == ["00.png", "03.png"]
    in_memory(rows)
    assert len(decoded) == COUNT
    expected = in_memory(rows)
    del rows
    assert np.array_equal(in_memory(load(folder, space).train.images), expected)
    assert len(decoded) == COUNT


def test_a_clients_split_stays_on_disk(folder: Path, space: CacheSpace, decoded: list[str]) -> None:
    parts = load(folder, space)
    data = private_shard(parts, seed=1, client_id=3)
    assert decoded == []
    assert (len(data.train), len(data.test), data.image_shape) == (18, 6, (3, SIDE, SIDE))
    everything = in_memory(parts.train.images)
    lazy = [data.train.images[np.arange(18)], data.test.images[np.arange(6)]]
    small = ImageParts(type(parts.train)(everything, parts.train.labels, parts.train.class_names))
    same = private_shard(small, seed=1, client_id=3)
    assert np.array_equal(lazy[0], in_memory(same.train.images))
    assert np.array_equal(lazy[1], in_memory(same.test.images))
    assert np.array_equal(data.train.labels, same.train.labels)
    assert len(data.train.images) == 18


def test_a_changed_file_is_decoded_anew(folder: Path, space: CacheSpace) -> None:
    before = in_memory(load(folder, space).train.images)
    write_image(folder / "class0" / "00.png", np.zeros((9, 9, 3), dtype=np.uint8))
    after = in_memory(load(folder, space).train.images)
    assert (after[0] == 0).all()
    assert np.array_equal(after[1:], before[1:])


def test_a_file_that_changes_under_a_running_client_is_an_error_and_not_cached(folder: Path, space: CacheSpace) -> None:
    rows = rows_of(load(folder, space))
    write_image(folder / "class0" / "00.png", np.zeros((9, 9, 3), dtype=np.uint8))
    with pytest.raises(DataError, match=r"00\.png: was changed after the client had listed its images; start"):
        rows[np.array([0])]
    assert rows.cache is not None
    assert not rows.cache.has(0)


def test_another_image_size_has_a_cache_of_its_own(folder: Path, space: CacheSpace) -> None:
    in_memory(load(folder, space).train.images)
    other = load_private_data(folder, classes=2, image_size=4, space=space).train.images
    assert in_memory(other).shape == (COUNT, 4, 4, 3)
    assert len(list(space.directory.glob("*.rows"))) == 2


def test_rows_beyond_the_cache_are_decoded_in_every_epoch(
    folder: Path, tmp_path: Path, decoded: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    row = SIDE * SIDE * 3
    rows = rows_of(load(folder, CacheSpace(directory=tmp_path / "cache", size=COUNT * 16 + 10 * row)))
    assert "has room for 10 of 24; the others are decoded in every epoch: give a larger --data-cache-s" in caplog.text
    expected = in_memory(rows)
    assert np.array_equal(in_memory(rows), expected)
    assert len(decoded) == COUNT + 14


def test_without_a_cache_everything_still_works(folder: Path, decoded: list[str]) -> None:
    rows = rows_of(load(folder))
    assert np.array_equal(in_memory(rows), in_memory(rows))
    assert len(decoded) == 2 * COUNT


def test_many_threads_read_the_same_rows(folder: Path, space: CacheSpace) -> None:
    rows = rows_of(load(folder, space))
    expected = in_memory(FileRows(rows.files, side=SIDE, dtype=rows.dtype))
    orders = [np.random.default_rng(seed).permutation(COUNT) for seed in range(16)]
    with ThreadPoolExecutor(8) as readers:
        for order, found in zip(orders, readers.map(rows.__getitem__, orders), strict=True):
            assert np.array_equal(found, expected[order])


def test_a_damaged_image_behind_a_sound_header_is_named_when_it_is_read(folder: Path, space: CacheSpace) -> None:
    path = folder / "class1" / "05.png"
    path.write_bytes(path.read_bytes()[:-60])
    rows = rows_of(load(folder, space))
    rows[np.array([0, 1])]
    with pytest.raises(DataError, match=r"05\.png: not a readable image: .*; `feddbp data check .*` lists all"):
        in_memory(rows)


def test_a_file_without_a_sound_header_is_named_at_the_start(folder: Path, space: CacheSpace) -> None:
    (folder / "class1" / "05.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"class1/05\.png \(not an image\)"):
        load(folder, space)


def test_damaged_images_of_a_large_folder_are_found_before_training_if_they_are_to_be_left_out(
    folder: Path, space: CacheSpace
) -> None:
    path = folder / "class1" / "05.png"
    path.write_bytes(path.read_bytes()[:-60])
    parts = load(folder, space, skip_unreadable=True)
    assert [name.partition(" ")[0] for name in parts.skipped] == ["class1/05.png"]
    assert len(in_memory(parts.train.images)) == len(parts.train.labels) == COUNT - 1


def float_folder(path: Path) -> np.ndarray:
    """Images of -7, 0, 7, ... 126; returns these values."""
    values = np.arange(-1, 19, dtype=np.float32) * 7
    (path / "any").mkdir(parents=True)
    for number, value in enumerate(values):
        Image.fromarray(np.full((9, 9), value, dtype=np.float32)).save(path / "any" / f"{number:02d}.tif")
    return values


def test_the_range_of_float_images_is_that_of_the_training_images_also_when_they_are_cached(
    tmp_path: Path, space: CacheSpace, decoded: list[str]
) -> None:
    values = float_folder(tmp_path / "data")
    for _ in ("decoded", "cached"):
        data = private_shard(load(tmp_path / "data", space, classes=1), seed=5, client_id=0)
        train = data.train.images[np.arange(15)]
        assert (data.pixels.dtype, data.pixels.low, data.pixels.high) == ("float32", train.min(), train.max())
        assert (data.pixels.low, data.pixels.high) != (values.min(), values.max())
    assert len(decoded) == len(values)


def test_a_float_image_that_is_not_finite_is_named_at_the_start(tmp_path: Path, space: CacheSpace) -> None:
    float_folder(tmp_path / "data")
    Image.fromarray(np.full((9, 9), np.nan, dtype=np.float32)).save(tmp_path / "data" / "any" / "07.tif")
    with pytest.raises(DataError, match=r"07\.tif \(NaN or infinite pixels\); replace or remove"):
        load(tmp_path / "data", space, classes=1)


def test_training_and_test_parts_share_the_space(folder: Path, tmp_path: Path) -> None:
    (folder / "train").mkdir()
    for name in ("class0", "class1"):
        (folder / name).rename(folder / "train" / name)
    for number, image in enumerate(pixels(4, side=9)):
        write_image(folder / "test" / "class0" / f"{number}.png", image)
    row = SIDE * SIDE * 3
    parts = load(folder, CacheSpace(directory=tmp_path / "cache", size=COUNT * (16 + row) + 4 * 16 + 2 * row))
    assert parts.test is not None
    rooms = [part.images.cache and part.images.cache.capacity for part in (parts.train, parts.test)]  # type: ignore[attr-defined]
    assert rooms == [COUNT, 2]


def test_a_listing_does_not_depend_on_where_the_folder_is(folder: Path, space: CacheSpace, decoded: list[str]) -> None:
    in_memory(load(folder, space).train.images)
    moved = folder.with_name("moved")
    folder.rename(moved)
    in_memory(load(moved, space).train.images)
    assert len(decoded) == COUNT
