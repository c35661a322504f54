"""Private data of a client: an .npz file or a folder of images."""

from __future__ import annotations

import logging
import stat
from typing import TYPE_CHECKING, Final

from feddbp_client.data.dataset_cache import cache_last
from feddbp_client.data.decoding import equal_sizes, resized, scaling_note
from feddbp_client.data.images import DataError, ImageParts, LabelledImages
from feddbp_client.data.pixels import pixel_range
from feddbp_client.data.readers.image_folder import read_folder
from feddbp_client.data.readers.npz import read_npz
from feddbp_common.humanize import human_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from feddbp_client.data.row_cache import CacheSpace

_log = logging.getLogger(__name__)

_LARGE: Final = 256_000_000
"""Bytes from which reading a file takes long enough to be announced."""


def load_private_data(
    path: Path,
    *,
    classes: int,
    class_names: tuple[str, ...] | None = None,
    image_size: int | None = None,
    space: CacheSpace | None = None,
    skip_unreadable: bool = False,
) -> ImageParts:
    """Loads private data; labels are matched by class name where the data has names, else by sorted folder or number.

    image_size resizes all images to squares of that side; without it an npz keeps its size, and a folder gets the one
    that read_folder describes. Decoded images of a large folder are cached in the given space. Files of a folder that
    are not readable images are an error, or left out by skip_unreadable.
    """
    if class_names is not None and (len(class_names) != classes or len(set(class_names)) != classes):
        raise DataError(f"the run has {classes} classes; it needs as many different class names")
    if image_size is not None and image_size < 1:
        raise DataError(f"image size is {image_size}, it must be positive")
    return _load(path.expanduser().resolve(), classes, class_names, image_size, space, skip_unreadable)


def is_folder(path: Path) -> bool:
    """Whether data are a folder and not a file. Raises DataError if there is nothing that this user may look at."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{path}: no such file or folder") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def check_samples_apart(parts: ImageParts, path: Path) -> None:
    """Raises DataError if one sample changes others, which differential privacy rules out.

    It would if all of them decide which are for training, or how pixels are scaled.
    """
    if parts.test is None:
        raise DataError(
            f"{path}: has no test part; under differential privacy give one, since which samples a split by chance "
            "leaves for training, and how many, changes with every sample"
        )
    pixels = pixel_range(parts.train.images)
    if pixels.dtype == "float32" and (pixels.low, pixels.high) != (0, 1):
        raise DataError(
            f"{path}: has float pixels from {pixels.low:g} to {pixels.high:g}, scaled by the lowest and the highest; "
            "under differential privacy one sample must not change the others: store them from 0 to 1, or as integers"
        )


@cache_last
def _load(
    path: Path,
    classes: int,
    class_names: tuple[str, ...] | None,
    image_size: int | None,
    space: CacheSpace | None,
    skip_unreadable: bool,
) -> ImageParts:
    if is_folder(path):
        return read_folder(
            path,
            classes=classes,
            class_names=class_names,
            image_size=image_size,
            space=space,
            skip_unreadable=skip_unreadable,
        )
    if path.suffix != ".npz":
        raise DataError(f"{path}: neither a folder of images nor an .npz file")
    if path.stat().st_size > _LARGE:
        _log.info("%s: reading %s into memory", path, human_bytes(path.stat().st_size))
    parts = read_npz(path, classes=classes, class_names=class_names)
    if image_size is None:
        return parts
    sizes = equal_sizes(parts.train.images, *(() if parts.test is None else (parts.test.images,)))
    if (sizes != image_size).any():
        _log.info("%s: %s", path, scaling_note(sizes, image_size, chosen=True))
    return ImageParts(
        _at_size(parts.train, image_size), None if parts.test is None else _at_size(parts.test, image_size)
    )


def _at_size(data: LabelledImages, size: int) -> LabelledImages:
    return LabelledImages(resized(data.images, size), data.labels, data.class_names)
