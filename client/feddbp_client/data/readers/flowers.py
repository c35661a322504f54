"""Oxford Flowers-102 from its published files: photographs, their labels, and the official split, pooled."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from feddbp_client.data.class_names import FLOWERS102_CLASSES
from feddbp_client.data.decoding import decode
from feddbp_client.data.images import DataError, LabelledImages, labelled
from feddbp_client.data.progress import Progress
from feddbp_client.data.readers.archives import tar_members

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

_SIDE = 64
_IMAGE = re.compile(r"jpg/image_(\d{5})\.jpg")


def read_flowers102(photographs: Path, label_file: Path, split_file: Path) -> LabelledImages:
    """In the order training, validation, test; the files number photographs and classes from 1."""
    labels = _numbers(label_file, "labels") - 1
    order = np.concatenate([_numbers(split_file, part) for part in ("trnid", "valid", "tstid")]) - 1
    if not np.array_equal(np.sort(order), np.arange(len(labels))):
        raise DataError(f"{split_file}: does not name each of the {len(labels)} labelled photographs once")
    images = np.empty((len(labels), _SIDE, _SIDE, 3), dtype=np.uint8)
    missing = set(range(len(labels)))
    progress = Progress("read", len(labels))
    for name, content in tar_members(photographs, _IMAGE):
        number = int(name[-9:-4]) - 1
        if number in missing:
            images[number] = decode(content, origin=f"{photographs}: {name}", size=_SIDE)
            missing.remove(number)
            progress.advance()
    if missing:
        raise DataError(f"{photographs}: has no jpg/image_{min(missing) + 1:05d}.jpg")
    return labelled(images[order], labels[order], FLOWERS102_CLASSES, origin=str(label_file))


def _numbers(path: Path, key: str) -> npt.NDArray[np.int64]:
    # Imported here: scipy is slow to import, and only this data set needs it.
    from scipy.io import loadmat

    try:
        table: dict[str, Any] = loadmat(path)
        return np.asarray(table[key]).ravel().astype(np.int64)
    except Exception as error:  # scipy raises its own, numpy's and Python's errors on damaged files
        raise DataError(f"{path}: cannot be read as the published {key}: {error!r}") from error
