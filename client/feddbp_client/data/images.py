"""Labelled images: rows in memory or elsewhere, and the checks that all readers share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from feddbp_common.errors import FedDBPError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

_CHANNELS: Final = (1, 3)


class DataError(FedDBPError):
    """Data that cannot be found, downloaded, read or split; the message names the file and the cause."""


class DownloadError(DataError):
    """A public data set that could not be downloaded, after several attempts."""


class UnreadableImageError(DataError):
    """A file that is not an image, or a damaged one; `reason` names no file."""

    def __init__(self, origin: str, reason: str, remedy: str = "") -> None:
        super().__init__(f"{origin}: not a readable image: {reason}" + (f"; {remedy}" if remedy else ""))
        self.reason = reason


class ImageRows(Protocol):
    """Images by row: an array in memory, a memory map, or files that are decoded when a row is read.

    Reading is safe from several threads.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, H, W, C) with C 1 or 3."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint8, uint16 or float32."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: npt.NDArray[np.int64], /) -> npt.NDArray[Any]:
        """The rows in the given order, [n, H, W, C]."""


def in_memory(images: ImageRows) -> npt.NDArray[Any]:
    """All rows as one array; an array or a memory map is returned as it is."""
    return images if isinstance(images, np.ndarray) else images[np.arange(len(images))]


# Compared and hashed by identity: two arrays have no single truth value, and the split is cached per object.
@dataclass(frozen=True, eq=False)
class LabelledImages:
    images: ImageRows
    labels: npt.NDArray[np.int64]
    """[N], each in 0..len(class_names)-1."""
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class ImageParts:
    """Images as they are stored: a training part and, if there is one, a test part."""

    train: LabelledImages
    test: LabelledImages | None = None
    skipped: tuple[str, ...] = ()
    """Files that were left out because they are not readable images, each with the reason."""

    def pooled(self) -> LabelledImages:
        if self.test is None:
            return self.train
        return LabelledImages(
            np.concatenate([in_memory(self.train.images), in_memory(self.test.images)]),
            np.concatenate([self.train.labels, self.test.labels]),
            self.train.class_names,
        )


def labelled(
    images: npt.NDArray[Any], labels: npt.NDArray[Any], class_names: Sequence[str], *, origin: str
) -> LabelledImages:
    """Checks arrays that were read from a file; every error message begins with origin."""
    if images.ndim == 3:
        images = images[..., np.newaxis]
    if images.ndim != 4 or images.shape[3] not in _CHANNELS or 0 in images.shape[1:]:
        expected = "expected [N, H, W] or [N, H, W, 1 or 3]"
        if images.ndim == 4 and images.shape[1] in _CHANNELS:
            expected += "; move the channels last, by np.moveaxis(images, 1, 3)"
        raise DataError(f"{origin}: images have shape {images.shape}, {expected}")
    images = _with_pixel_type(images, origin)
    check_label_type(labels, origin=origin)
    if len(images) != len(labels):
        raise DataError(f"{origin}: {len(images)} images but {len(labels)} labels")
    if not len(labels):
        raise DataError(f"{origin}: holds no images")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= len(class_names):
        wrong = low if low < 0 else high
        raise DataError(f"{origin}: label {wrong} is outside 0..{len(class_names) - 1}")
    return LabelledImages(images, labels.astype(np.int64), tuple(class_names))


def check_label_type(labels: npt.NDArray[Any], *, origin: str) -> None:
    if labels.ndim == 2 and labels.shape[1] > 1:
        raise DataError(
            f"{origin}: labels have shape {labels.shape}, expected [N]; of one-hot labels give labels.argmax(axis=1)"
        )
    if not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"{origin}: labels are {labels.dtype}, expected integers")
    if labels.ndim != 1:
        raise DataError(f"{origin}: labels have shape {labels.shape}, expected [N]")


def _with_pixel_type(images: npt.NDArray[Any], origin: str) -> npt.NDArray[Any]:
    """Native uint8 and uint16 as they are, and finite floats as float32."""
    if images.dtype.kind == "f":
        with np.errstate(over="ignore"):  # becomes infinite, which is refused
            images = images.astype(np.float32, copy=False)
        # The extremes of an array with NaN are NaN: no array of booleans is needed.
        if images.size and not np.isfinite([images.min(), images.max()]).all():
            finite = np.isfinite(images).reshape(len(images), -1).all(axis=1)
            raise DataError(f"{origin}: image {int(np.argmin(finite))} has NaN or infinite pixels")
        return images
    native = images.dtype.newbyteorder("=")
    if native not in (np.uint8, np.uint16):
        raise DataError(f"{origin}: images are {images.dtype}, expected uint8, uint16, float32 or float64")
    return images.astype(native, copy=False)
