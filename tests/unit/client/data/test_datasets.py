from __future__ import annotations

import gc
import io
import pickle
import weakref
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from data_samples import (
    cifar10_members,
    cifar100_members,
    encoded,
    flat,
    jpeg_keys,
    md5,
    pixels,
    python2_pickle,
    tar_gz,
    tiny_imagenet_members,
    zipped,
)
from scipy.io import savemat

from feddbp_client.data import DataError, clear_dataset_cache, dataset_cache, datasets, load_dataset
from feddbp_client.data.datasets import SOURCES, PublishedFile
from feddbp_client.data.images import in_memory
from feddbp_common.config.catalog import DATASETS

if TYPE_CHECKING:
    from file_server import FileServer

IMAGES = pixels(12, side=32)
LABELS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


def publish(
    monkeypatch: pytest.MonkeyPatch, name: str, contents: list[bytes], url: str = "http://127.0.0.1:9"
) -> tuple[PublishedFile, ...]:
    """Replaces the published files of the data set."""
    files = tuple(
        PublishedFile(url=f"{url}/{file.name}", digest=md5(content), size=len(content))
        for file, content in zip(SOURCES[name].files, contents, strict=True)
    )
    monkeypatch.setattr(datasets, "SOURCES", {**SOURCES, name: replace(SOURCES[name], files=files)})
    return files


def put(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, *contents: bytes) -> None:
    for file, content in zip(publish(monkeypatch, name, list(contents)), contents, strict=True):
        (folder / file.name).write_bytes(content)


def flower_files(labels: list[int], order: list[int], missing: int | None = None) -> list[bytes]:
    photographs = {
        f"jpg/image_{number:05d}.jpg": encoded(flat((10 * number, 0, 0), 90, 70), "JPEG")
        for number in range(1, len(labels) + 1)
        if number != missing
    }
    tables = []
    for table in (
        {"labels": [labels]},
        {"trnid": [order[:2]], "valid": [order[2:3]], "tstid": [order[3:]]},
    ):
        out = io.BytesIO()
        savemat(out, table)
        tables.append(out.getvalue())
    return [tar_gz({"jpg/": b"", **photographs, "jpg/readme.txt": b"no photograph"}), *tables]


# --- npz ---


def test_an_npz_is_pooled(tmp_path: Path) -> None:
    names = np.array([f"c{number}" for number in range(10)])
    np.savez(
        tmp_path / "cifar10_12k.npz",
        x_train=IMAGES[:8],
        y_train=LABELS[:8],
        x_test=IMAGES[8:],
        y_test=LABELS[8:],
        classes=names,
    )
    data = load_dataset("cifar10", tmp_path, download=False)
    assert np.array_equal(in_memory(data.images), IMAGES)
    assert data.labels.tolist() == LABELS
    assert data.class_names == tuple(names)


@pytest.mark.parametrize(
    ("name", "side", "number", "called"),
    [("cifar10", 32, 9, "truck"), ("cifar100", 32, 47, "maple_tree"), ("flowers102", 64, 76, "passion flower")],
)
def test_an_npz_without_class_names_gets_the_usual_ones(
    name: str, side: int, number: int, called: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / f"{name}.npz", x_train=pixels(2, side=side), y_train=[0, 1])
    names = load_dataset(name, tmp_path, download=False).class_names
    assert len(set(names)) == DATASETS[name].classes
    assert names[number] == called


def test_cifar10_is_not_mistaken_for_cifar100(tmp_path: Path) -> None:
    np.savez(tmp_path / "cifar100_12k.npz", x_train=IMAGES, y_train=LABELS)
    with pytest.raises(DataError, match=r"has neither cifar-10-python\.tar\.gz nor cifar10\*\.npz"):
        load_dataset("cifar10", tmp_path, download=False)
    assert len(load_dataset("cifar100", tmp_path, download=False).class_names) == 100


def test_of_tiny_imagenet_only_the_training_part_is_used(tmp_path: Path) -> None:
    file = encoded(flat((1, 2, 3), 64, 64), "JPEG")
    images: dict[str, Any] = {**jpeg_keys([file, file], "train"), **jpeg_keys([file], "test")}
    np.savez(tmp_path / "tinyimagenet200_12k_jpeg.npz", **images, y_train=[7, 199], y_test=[0])
    data = load_dataset("tiny-imagenet", tmp_path, download=False)
    assert data.labels.tolist() == [7, 199]


def test_of_several_files_the_exact_name_wins_and_else_none(tmp_path: Path) -> None:
    np.savez(tmp_path / "cifar10_a.npz", x_train=IMAGES[:1], y_train=[1])
    np.savez(tmp_path / "cifar10_b.npz", x_train=IMAGES[:2], y_train=[1, 2])
    with pytest.raises(DataError, match=r"several files could be cifar10: cifar10_a\.npz, cifar10_b\.npz"):
        load_dataset("cifar10", tmp_path)
    np.savez(tmp_path / "cifar10.npz", x_train=IMAGES[:3], y_train=[1, 2, 3])
    assert len(load_dataset("cifar10", tmp_path)) == 3


def test_an_npz_of_another_shape_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "cifar10.npz", x_train=pixels(2, side=28), y_train=[1, 2])
    with pytest.raises(DataError, match=r"cifar10\.npz: images are \(28, 28, 3\), those of CIFAR-10 are"):
        load_dataset("cifar10", tmp_path)


# --- archives ---


def test_cifar10_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, tmp_path, "cifar10", tar_gz(cifar10_members(IMAGES, LABELS)))
    data = load_dataset("cifar10", tmp_path, download=False)
    assert np.array_equal(in_memory(data.images), IMAGES)
    assert data.labels.tolist() == LABELS
    assert data.class_names[3] == "kind3"


def test_cifar100_archive_pools_training_before_test_and_uses_fine_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(monkeypatch, tmp_path, "cifar100", tar_gz(cifar100_members(IMAGES, [*LABELS[:-1], 99], cut=9)))
    data = load_dataset("cifar100", tmp_path, download=False)
    assert np.array_equal(in_memory(data.images), IMAGES)
    assert data.labels.tolist() == [*LABELS[:-1], 99]


def test_flowers_archive_pools_the_three_parts_and_resizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, tmp_path, "flowers102", *flower_files([1, 102, 77, 3, 5], [4, 2, 5, 1, 3]))
    data = load_dataset("flowers102", tmp_path, download=False)
    assert data.images.shape == (5, 64, 64, 3)
    assert data.labels.tolist() == [2, 101, 4, 0, 76]
    assert np.abs(in_memory(data.images)[:, 5, 5, 0].astype(int) - [40, 20, 50, 10, 30]).max() < 6
    assert len(set(data.class_names)) == 102
    assert data.class_names[76] == "passion flower"


def test_flowers_with_a_photograph_missing_or_named_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, tmp_path, "flowers102", *flower_files([1, 2, 3, 4], [1, 2, 3, 4], missing=3))
    with pytest.raises(DataError, match=r"102flowers\.tgz: has no jpg/image_00003\.jpg"):
        load_dataset("flowers102", tmp_path)
    put(monkeypatch, tmp_path, "flowers102", *flower_files([1, 2, 3, 4], [1, 2, 3, 3]))
    with pytest.raises(DataError, match=r"setid\.mat: does not name each of the 4"):
        load_dataset("flowers102", tmp_path)
    photographs, _, parts = flower_files([1], [1])
    put(monkeypatch, tmp_path, "flowers102", photographs, b"no matlab file", parts)
    with pytest.raises(DataError, match=r"imagelabels\.mat: cannot be read"):
        load_dataset("flowers102", tmp_path)


def test_tiny_imagenet_archive_numbers_classes_by_wordnet_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, tmp_path, "tiny-imagenet", zipped(tiny_imagenet_members()))
    data = load_dataset("tiny-imagenet", tmp_path, download=False)
    assert data.labels.tolist() == list(range(200))
    assert in_memory(data.images)[:, 0, 0, 0].tolist() == list(range(200))
    assert data.class_names[42] == "thing 42, stuff"


def test_an_archive_with_too_few_classes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, tmp_path, "tiny-imagenet", zipped(tiny_imagenet_members(classes=3)))
    with pytest.raises(DataError, match="has 3 classes, Tiny-ImageNet-200 has 200"):
        load_dataset("tiny-imagenet", tmp_path)


def test_a_file_missing_from_an_archive_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = cifar10_members(IMAGES, LABELS)
    del members["cifar-10-batches-py/data_batch_4"]
    put(monkeypatch, tmp_path, "cifar10", tar_gz(members))
    with pytest.raises(DataError, match="has no cifar-10-batches-py/data_batch_4"):
        load_dataset("cifar10", tmp_path)
    put(monkeypatch, tmp_path, "tiny-imagenet", zipped({"other.txt": b""}))
    with pytest.raises(DataError, match="has no training images"):
        load_dataset("tiny-imagenet", tmp_path)


@pytest.mark.parametrize("name", ["cifar10", "tiny-imagenet"])
@pytest.mark.parametrize("keep", [0.0, 0.5, 0.9])
def test_a_truncated_archive_is_refused_even_with_the_right_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, keep: float
) -> None:
    whole = tar_gz(cifar10_members(IMAGES, LABELS)) if name == "cifar10" else zipped(tiny_imagenet_members(3))
    put(monkeypatch, tmp_path, name, whole[: int(len(whole) * keep)])
    with pytest.raises(DataError, match="damaged archive"):
        load_dataset(name, tmp_path)


def test_an_archive_that_is_not_the_published_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(tar_gz(cifar10_members(IMAGES, LABELS)))
    with pytest.raises(DataError, match=r"cifar-10-python\.tar\.gz: not the published file"):
        load_dataset("cifar10", tmp_path)


# --- hostile archives ---


class Touch:
    """A hostile pickle, which leaves a file when it runs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


class Evaluate(Touch):
    def __reduce__(self) -> tuple[Any, ...]:
        return eval, (f"__import__('pathlib').Path({str(self.path)!r}).touch()",)


class Borrow(Touch):
    """Uses a function of a module that real archives refer to."""

    def __reduce__(self) -> tuple[Any, ...]:
        return np.save, (str(self.path), 1)


@pytest.mark.parametrize("attack", [Touch, Evaluate, Borrow])
def test_a_hostile_pickle_is_refused_without_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: type[Touch]
) -> None:
    trace = tmp_path / "trace.npy"
    members = cifar10_members(IMAGES, LABELS)
    members["cifar-10-batches-py/data_batch_2"] = pickle.dumps({"data": attack(trace)}, protocol=2)
    pickle.loads(members["cifar-10-batches-py/data_batch_2"])
    assert trace.exists()  # the attack works with plain pickle
    trace.unlink()
    put(monkeypatch, tmp_path, "cifar10", tar_gz(members))
    with pytest.raises(DataError, match="data_batch_2 is refused: it refers to"):
        load_dataset("cifar10", tmp_path)
    assert not trace.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a pickle",
        pickle.dumps([1, 2]),
        b"\x80\x04\x8c\x05numpy\x8c\x11ndarray.__class__\x93.",  # an attribute of an allowed name
        b"cnumpy\nndarray\n}S'__init__'\nNsb.",  # the state of an allowed class itself
        python2_pickle({b"data": b"text", b"labels": [1]}),
        python2_pickle({b"data": np.array([None, 1], dtype=object), b"labels": [1]}),
        python2_pickle({b"data": np.zeros((1, 3072)), b"labels": [1]}),
        python2_pickle({b"data": np.zeros((1, 100), dtype=np.uint8), b"labels": [1]}),
        python2_pickle({b"data": np.zeros((1, 3072), dtype=np.uint8), b"labels": [b"x"]}),
        python2_pickle({b"labels": [1]}),
    ],
)
def test_a_malformed_batch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    members = cifar10_members(IMAGES, LABELS)
    members["cifar-10-batches-py/data_batch_2"] = content
    put(monkeypatch, tmp_path, "cifar10", tar_gz(members))
    with pytest.raises(DataError, match=r"is refused|not in the published format of CIFAR"):
        load_dataset("cifar10", tmp_path)


def test_nothing_is_written_under_a_name_from_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    members = {"../escaped": b"x", "/tmp/escaped": b"x", **cifar10_members(IMAGES, LABELS)}
    put(monkeypatch, folder, "cifar10", tar_gz(members))
    load_dataset("cifar10", folder)
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        ".cifar10.npz",
        ".cifar10.npz.lock",
        "cifar-10-python.tar.gz",
        "data",
    ]


# --- downloads and their cache ---


def test_an_absent_archive_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: FileServer) -> None:
    contents = flower_files([1, 2, 3, 4], [1, 2, 3, 4])
    for file, content in zip(publish(monkeypatch, "flowers102", contents, server.url), contents, strict=True):
        server.files[f"/{file.name}"] = content
    data = load_dataset("flowers102", tmp_path / "new" / "folder")
    assert data.labels.tolist() == [0, 1, 2, 3]
    assert len(server.ranges) == 3


def test_a_folder_that_is_made_for_a_download_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: FileServer, caplog: pytest.LogCaptureFixture
) -> None:
    publish(monkeypatch, "cifar10", [b"any"], server.url)
    with pytest.raises(DataError, match="HTTP 404"):
        load_dataset("cifar10", tmp_path / "typo")
    assert f"{tmp_path / 'typo'} did not exist: it was made, to download CIFAR-10 to it" in caplog.messages


def test_a_download_that_failed_is_not_repeated_for_other_clients_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: FileServer
) -> None:
    publish(monkeypatch, "cifar10", [b"any"], server.url)
    messages = []
    for _ in range(3):
        with pytest.raises(DataError, match="HTTP 404") as failure:
            load_dataset("cifar10", tmp_path)
        messages.append(str(failure.value))
    assert len(set(messages)) == 1
    assert len(server.ranges) == 1
    clear_dataset_cache()  # as when all clients have failed
    with pytest.raises(DataError, match="HTTP 404"):
        load_dataset("cifar10", tmp_path)
    assert len(server.ranges) == 2


def test_a_download_that_failed_is_tried_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: FileServer
) -> None:
    archive = tar_gz(cifar10_members(IMAGES, LABELS))
    (file,) = publish(monkeypatch, "cifar10", [archive], server.url)
    for wait, requests in ((60.0, 1), (60.0, 1), (0.0, 2)):
        monkeypatch.setattr(dataset_cache, "_RETRY_SECONDS", wait)
        with pytest.raises(DataError, match="HTTP 404"):
            load_dataset("cifar10", tmp_path)
        assert len(server.ranges) == requests
    (tmp_path / file.name).write_bytes(archive)
    assert load_dataset("cifar10", tmp_path).labels.tolist() == LABELS


def test_a_download_that_failed_keeps_neither_its_frames_nor_a_loaded_data_set_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: FileServer
) -> None:
    digits = load_dataset("digits", tmp_path)
    publish(monkeypatch, "cifar10", [b"any"], server.url)
    with pytest.raises(DataError, match="HTTP 404") as failure:
        load_dataset("cifar10", tmp_path)
    raised = weakref.ref(failure.value)
    del failure
    gc.collect()
    assert raised() is None
    assert load_dataset("digits", tmp_path) is digits


def test_downloading_can_be_off_and_a_failure_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: FileServer
) -> None:
    publish(monkeypatch, "cifar10", [b"any"], server.url)
    with pytest.raises(DataError, match="downloading is off"):
        load_dataset("cifar10", tmp_path / "absent", download=False)
    assert not (tmp_path / "absent").exists()
    with pytest.raises(DataError, match=r"HTTP 404.*or put cifar-10-python\.tar\.gz or cifar10\*\.npz into "):
        load_dataset("cifar10", tmp_path)


def test_the_second_load_reads_the_cache_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, tmp_path, "cifar10", tar_gz(cifar10_members(IMAGES, LABELS)))
    first = load_dataset("cifar10", tmp_path)
    (tmp_path / "cifar-10-python.tar.gz").unlink()
    clear_dataset_cache()
    second = load_dataset("cifar10", tmp_path, download=False)
    assert second is not first
    assert isinstance(second.images, np.memmap)  # shared between processes
    assert np.array_equal(second.images, IMAGES)
    assert second.labels.tolist() == LABELS
    assert second.class_names == first.class_names


def test_a_damaged_or_outdated_cache_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, tmp_path, "cifar10", tar_gz(cifar10_members(IMAGES, LABELS)))
    cache = tmp_path / ".cifar10.npz"
    cache.write_bytes(b"cut short by a full disk")
    assert np.array_equal(in_memory(load_dataset("cifar10", tmp_path).images), IMAGES)
    clear_dataset_cache()
    put(monkeypatch, tmp_path, "cifar10", tar_gz(cifar10_members(IMAGES[::-1], LABELS)))
    assert np.array_equal(in_memory(load_dataset("cifar10", tmp_path).images), IMAGES[::-1])


def test_data_can_be_read_from_a_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, tmp_path, "cifar10", tar_gz(cifar10_members(IMAGES, LABELS)))
    (tmp_path / ".cifar10.npz.lock").mkdir()  # acts as a read-only folder, also for root
    assert np.array_equal(in_memory(load_dataset("cifar10", tmp_path).images), IMAGES)
    assert not (tmp_path / ".cifar10.npz").exists()


# --- by name ---


def test_digits_need_no_files(tmp_path: Path) -> None:
    data = load_dataset("digits", tmp_path / "absent", download=False)
    assert data.images.shape == (1797, 16, 16, 1)
    assert in_memory(data.images).min() == 0
    assert in_memory(data.images).max() == 255
    assert data.class_names == tuple("0123456789")
    assert not (tmp_path / "absent").exists()


def test_an_unknown_name_is_an_error_that_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no data set is called 'mnist'; known are digits, cifar10"):
        load_dataset("mnist", tmp_path)


def test_the_catalogue_and_the_sources_agree() -> None:
    assert SOURCES.keys() == DATASETS.keys()
    for source in SOURCES.values():
        assert all(file.digest.startswith("sha256:") and len(file.digest) == 71 for file in source.files)
        assert all(file.url.startswith("https://") for file in source.files)


def test_a_data_set_is_loaded_once_for_many_clients(tmp_path: Path) -> None:
    np.savez(tmp_path / "cifar10.npz", x_train=IMAGES, y_train=LABELS)
    assert load_dataset("cifar10", tmp_path) is load_dataset("cifar10", tmp_path)
