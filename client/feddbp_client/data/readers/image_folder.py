"""Images in folders, one per class: ROOT/CLASS, or ROOT/train/CLASS and ROOT/test/CLASS."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import numpy as np

from feddbp_client.data.decoding import decode, decode_all
from feddbp_client.data.images import DataError, ImageParts, LabelledImages, labelled

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_log = logging.getLogger(__name__)

LARGEST_DEFAULT_SIDE: Final = 64
"""The largest size of the public data sets; larger only on request, since cost grows with the square."""

_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})


def read_folder(path: Path, *, classes: int, class_names: Sequence[str] | None, image_size: int | None) -> ImageParts:
    """All images as RGB squares of one size, aspect not kept.

    The size is image_size, or else the short side of the first training image, but at most
    LARGEST_DEFAULT_SIDE. Files that are not images are ignored; sub-folders of a class belong to it.
    """
    train_root, test_root = _roots(path)
    train, test = _files(train_root), {} if test_root is None else _files(test_root)
    numbers = _numbers(path, {*train, *test}, classes, class_names)
    first = next((files[0] for files in train.values() if files), None)
    if first is None:
        raise DataError(f"{train_root}: holds no images in class folders")
    side = image_size or min(*decode(first, origin=str(first)).shape[:2], LARGEST_DEFAULT_SIDE)
    return ImageParts(
        _read(path, train, numbers, side), _read(path, test, numbers, side) if any(test.values()) else None
    )


def _roots(path: Path) -> tuple[Path, Path | None]:
    folders = {folder.name: folder for folder in _folders(path)}
    # A folder `train` with images in it is a class: of locomotives, say.
    if "train" not in folders or not _folders(folders["train"]):
        return path, None
    others = sorted(folders.keys() - {"train", "test"})
    if others:
        raise DataError(f"{folders[others[0]]}: neither train nor test; expected no other folder beside them")
    return folders["train"], folders.get("test")


def _folders(path: Path) -> list[Path]:
    try:
        found = [entry for entry in path.iterdir() if entry.is_dir()]
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    return sorted(folder for folder in found if not folder.name.startswith((".", "__")))


def _files(root: Path) -> dict[str, list[Path]]:
    found = {}
    for folder in _folders(root):
        found[folder.name] = sorted(
            file
            for file in folder.rglob("*")
            if file.suffix.lower() in _SUFFIXES and not file.name.startswith(".") and file.is_file()
        )
        # Allowed: without that class, its owner keeps the numbering of the others this way.
        if not found[folder.name]:
            _log.warning("%s holds no images", folder)
    return found


def _numbers(path: Path, folders: set[str], classes: int, class_names: Sequence[str] | None) -> dict[str, int]:
    if class_names is not None:
        unknown = sorted(folders - set(class_names))
        if unknown:
            classes_of_run = ", ".join(class_names)
            raise DataError(f"{path}: folder {unknown[0]!r} is not one of the run's classes: {classes_of_run}")
    elif len(folders) != classes:
        raise DataError(f"{path}: has {len(folders)} class folders, the run has {classes} classes")
    return {name: number for number, name in enumerate(class_names or sorted(folders))}


def _read(path: Path, files: dict[str, list[Path]], numbers: dict[str, int], side: int) -> LabelledImages:
    paths = [file for of_class in files.values() for file in of_class]
    labels = np.repeat([numbers[name] for name in files], [len(of_class) for of_class in files.values()])
    images = decode_all(len(paths), lambda i: (paths[i], str(paths[i])), size=side)
    return labelled(images, labels, tuple(numbers), origin=str(path))
