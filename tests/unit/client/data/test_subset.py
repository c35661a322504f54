"""Subsets of public data sets: what is drawn, and the file that clients read in place of the whole."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from data_samples import pixels

from feddbp_client.data import DataError, LabelledImages, clear_dataset_cache, load_dataset
from feddbp_client.data.images import in_memory
from feddbp_client.data.subset import draw_subset, save_subset

COUNTS = (30, 4, 0, 25)
"""Images of each class."""


@pytest.fixture
def data() -> LabelledImages:
    """Images that have their row as their first pixel, in the order of no class."""
    labels = np.random.default_rng(7).permutation(np.repeat(np.arange(len(COUNTS)), COUNTS))
    images = pixels(len(labels))
    images[:, 0, 0, 0] = np.arange(len(labels))
    return LabelledImages(images, labels, ("ant", "bee", "cow", "dog"))


def rows_of(subset: LabelledImages) -> npt.NDArray[np.int64]:
    return in_memory(subset.images)[:, 0, 0, 0].astype(np.int64)


def test_each_class_has_as_many_images_as_asked_for_or_all_that_it_has(data: LabelledImages) -> None:
    subset = draw_subset(data, per_class=10, seed=0)
    assert np.bincount(subset.labels, minlength=4).tolist() == [10, 4, 0, 10]
    assert subset.class_names == data.class_names


def test_no_image_is_drawn_twice_and_each_keeps_its_label(data: LabelledImages) -> None:
    subset = draw_subset(data, per_class=10, seed=0)
    rows = rows_of(subset)
    assert len(set(rows)) == len(subset)
    assert np.array_equal(subset.labels, data.labels[rows])
    assert np.array_equal(in_memory(subset.images), in_memory(data.images)[rows])


def test_the_order_is_that_of_neither_the_classes_nor_the_data(data: LabelledImages) -> None:
    subset = draw_subset(data, per_class=1000, seed=0)
    assert sorted(rows_of(subset)) == list(range(len(data)))
    assert (np.diff(subset.labels) < 0).any()
    assert (np.diff(rows_of(subset)) < 0).any()


def test_a_seed_gives_the_same_images_and_another_seed_others(data: LabelledImages) -> None:
    first, again, other = (rows_of(draw_subset(data, per_class=10, seed=seed)) for seed in (0, 0, 1))
    assert first.tolist() == again.tolist()
    assert set(first) != set(other)


def test_a_smaller_subset_is_part_of_a_larger_one(data: LabelledImages) -> None:
    small, large = (set(rows_of(draw_subset(data, per_class=number, seed=3))) for number in (5, 12))
    assert small < large


def test_what_is_drawn_of_a_class_does_not_depend_on_other_classes(data: LabelledImages) -> None:
    def dogs(found: LabelledImages) -> set[int]:
        return set(rows_of(found)[found.labels == 3])

    kept = np.flatnonzero(data.labels != 0)
    without_ants = LabelledImages(data.images[kept], data.labels[kept], data.class_names)
    assert dogs(draw_subset(data, per_class=10, seed=0)) == dogs(draw_subset(without_ants, per_class=10, seed=0))


def test_a_subset_of_nothing_is_refused(data: LabelledImages) -> None:
    with pytest.raises(DataError, match="draw at least one"):
        draw_subset(data, per_class=0, seed=0)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A directory with CIFAR-100: 200 images for training and 100 for testing, of all classes."""
    folder = tmp_path / "whole"
    folder.mkdir()
    images, labels = pixels(300, side=32), np.tile(np.arange(100), 3)
    np.savez(
        folder / "cifar100_small.npz",
        x_train=images[:200],
        y_train=labels[:200],
        x_test=images[200:],
        y_test=labels[200:],
    )
    return folder


def test_a_client_reads_a_subset_as_the_data_set(whole: Path, tmp_path: Path) -> None:
    written = save_subset("cifar100", whole, tmp_path / "subset" / "cifar100.npz", per_class=2, seed=0)
    read = load_dataset("cifar100", tmp_path / "subset", download=False)
    assert np.array_equal(in_memory(read.images), in_memory(written.images))
    assert read.labels.tolist() == written.labels.tolist()
    assert np.bincount(read.labels).tolist() == [2] * 100
    assert read.class_names == load_dataset("cifar100", whole).class_names


def test_a_subset_of_data_without_a_download_is_read_too(tmp_path: Path) -> None:
    save_subset("digits", tmp_path / "data", tmp_path / "subset" / "digits.npz", per_class=5, seed=0)
    assert len(load_dataset("digits", tmp_path / "subset")) == 50
    assert len(load_dataset("digits", tmp_path / "data")) == 1797


def test_the_same_input_and_seed_give_the_same_bytes_at_any_time(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / folder / "cifar100.npz" for folder in ("first", "again", "other")]
    save_subset("cifar100", whole, paths[0], per_class=2, seed=0)
    monkeypatch.setattr("time.time", lambda: 2e9)
    save_subset("cifar100", whole, paths[1], per_class=2, seed=0)
    save_subset("cifar100", whole, paths[2], per_class=2, seed=1)
    assert paths[0].read_bytes() == paths[1].read_bytes() != paths[2].read_bytes()
    with zipfile.ZipFile(paths[0]) as archive:
        members = archive.infolist()
    assert {member.date_time for member in members} == {(1980, 1, 1, 0, 0, 0)}
    assert {member.compress_type for member in members} == {zipfile.ZIP_DEFLATED}


def test_a_file_is_replaced_only_when_asked_and_then_read_anew(whole: Path, tmp_path: Path) -> None:
    target = tmp_path / "subset" / "cifar100.npz"
    save_subset("cifar100", whole, target, per_class=1, seed=0)
    assert len(load_dataset("cifar100", target.parent)) == 100
    before = target.read_bytes()
    with pytest.raises(DataError, match=r"cifar100\.npz: exists already; give --overwrite"):
        save_subset("cifar100", whole, target, per_class=2, seed=0)
    assert target.read_bytes() == before
    save_subset("cifar100", whole, target, per_class=2, seed=0, overwrite=True)
    assert len(load_dataset("cifar100", target.parent)) == 200


def test_the_whole_data_set_is_not_hidden_by_its_subset(whole: Path) -> None:
    with pytest.raises(DataError, match="is the --data-dir"):
        save_subset("cifar100", whole, whole / "cifar100.npz", per_class=1, seed=0, overwrite=True)
    assert [path.name for path in whole.iterdir()] == ["cifar100_small.npz"]


def test_a_write_that_fails_leaves_the_earlier_file_and_no_other(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "subset" / "cifar100.npz"
    save_subset("cifar100", whole, target, per_class=1, seed=0)
    before = target.read_bytes()
    clear_dataset_cache()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(DataError, match=r"cifar100\.npz: cannot be written: No space left on device"):
        save_subset("cifar100", whole, target, per_class=2, seed=0, overwrite=True)
    assert target.read_bytes() == before
    assert {path.name for path in target.parent.iterdir()} == {"cifar100.npz", ".cifar100.npz.lock"}
