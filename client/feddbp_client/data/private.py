"""Private data of a client: an .npz file or a folder of images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feddbp_client.data.dataset_cache import cache_last
from feddbp_client.data.decoding import resized
from feddbp_client.data.images import DataError, ImageParts, LabelledImages
from feddbp_client.data.readers.image_folder import read_folder
from feddbp_client.data.readers.npz import read_npz

if TYPE_CHECKING:
    from pathlib import Path


def load_private_data(
    path: Path,
    *,
    classes: int,
    class_names: tuple[str, ...] | None = None,
    image_size: int | None = None,
) -> ImageParts:
    """Loads private data; labels are matched by class name where the data has names, else by sorted folder or number.

    image_size resizes all images to squares of that side; without it an npz keeps its size, and a folder gets the one
    that read_folder describes.
    """
    if class_names is not None and (len(class_names) != classes or len(set(class_names)) != classes):
        raise DataError(f"the run has {classes} classes; it needs as many different class names")
    if image_size is not None and image_size < 1:
        raise DataError(f"image size is {image_size}, it must be positive")
    return _load(path.expanduser().resolve(), classes, class_names, image_size)


@cache_last
def _load(path: Path, classes: int, class_names: tuple[str, ...] | None, image_size: int | None) -> ImageParts:
    if path.is_dir():
        return read_folder(path, classes=classes, class_names=class_names, image_size=image_size)
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    if path.suffix != ".npz":
        raise DataError(f"{path}: neither a folder of images nor an .npz file")
    parts = read_npz(path, classes=classes, class_names=class_names)
    if image_size is None:
        return parts
    return ImageParts(
        _at_size(parts.train, image_size), None if parts.test is None else _at_size(parts.test, image_size)
    )


def _at_size(data: LabelledImages, size: int) -> LabelledImages:
    return LabelledImages(resized(data.images, size), data.labels, data.class_names)
