"""Labelled images in memory, and the decoding, resizing and checks that all readers share."""

from __future__ import annotations

import io
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from feddbp_common.errors import FedDBPError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Picture: TypeAlias = Path | bytes | Image.Image | npt.NDArray[np.uint8]
"""An image file, its content, or its pixels: [H, W] or [H, W, 1 or 3]."""
_CHANNELS: Final = (1, 3)


class DataError(FedDBPError):
    """Data that cannot be found, downloaded, read or split; the message names the file and the cause."""


class ImageRows(Protocol):
    """Images by row: an array in memory, a memory map, or files that are decoded when a row is read.

    Reading is safe from several threads.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, H, W, C) with C 1 or 3."""

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: npt.NDArray[np.int64], /) -> npt.NDArray[Any]:
        """The rows in the given order, [n, H, W, C]."""


# Compared and hashed by identity: two arrays have no single truth value, and the split is cached per object.
@dataclass(frozen=True, eq=False)
class LabelledImages:
    images: npt.NDArray[np.uint8]
    """[N, H, W, C] with C 1 or 3; may be a read-only memory map."""
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

    def pooled(self) -> LabelledImages:
        if self.test is None:
            return self.train
        return LabelledImages(
            np.concatenate([self.train.images, self.test.images]),
            np.concatenate([self.train.labels, self.test.labels]),
            self.train.class_names,
        )


def labelled(
    images: npt.NDArray[Any], labels: npt.NDArray[Any], class_names: Sequence[str], *, origin: str
) -> LabelledImages:
    """Checks arrays that were read from a file; every error message begins with origin."""
    if images.dtype != np.uint8:
        raise DataError(f"{origin}: images are {images.dtype}, expected uint8")
    if images.ndim == 3:
        images = images[..., np.newaxis]
    if images.ndim != 4 or images.shape[3] not in _CHANNELS or 0 in images.shape[1:]:
        raise DataError(f"{origin}: images have shape {images.shape}, expected [N, H, W] or [N, H, W, 1 or 3]")
    if not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"{origin}: labels are {labels.dtype}, expected integers")
    if labels.ndim != 1:
        raise DataError(f"{origin}: labels have shape {labels.shape}, expected [N]")
    if len(images) != len(labels):
        raise DataError(f"{origin}: {len(images)} images but {len(labels)} labels")
    if not len(labels):
        raise DataError(f"{origin}: holds no images")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= len(class_names):
        wrong = low if low < 0 else high
        raise DataError(f"{origin}: label {wrong} is outside 0..{len(class_names) - 1}")
    return LabelledImages(images, labels.astype(np.int64), tuple(class_names))


def decode(picture: Picture, *, origin: str, size: int | None = None) -> npt.NDArray[np.uint8]:
    """One image as RGB [H, W, 3]; with a size it is resized to a square of that side, aspect not kept."""
    rgb = _rgb(picture, origin)
    return np.asarray(rgb if size is None else _stretched(rgb, size, size))


def decode_all(
    count: int, encoded: Callable[[int], tuple[bytes | Path, str]], *, size: int | None = None
) -> npt.NDArray[np.uint8]:
    """Decodes `count` images; encoded(i) gives file i and its origin. One array is filled, so memory never doubles."""
    content, origin = encoded(0)
    first = decode(content, origin=origin, size=size)
    images = np.empty((count, *first.shape), dtype=np.uint8)
    images[0] = first
    for index in range(1, count):
        content, origin = encoded(index)
        image = decode(content, origin=origin, size=size)
        if image.shape != first.shape:
            raise DataError(f"{origin}: is {image.shape[1]}x{image.shape[0]}, others {first.shape[1]}x{first.shape[0]}")
        images[index] = image
    return images


def fitted(picture: Picture, image_shape: tuple[int, int, int], *, origin: str) -> npt.NDArray[np.uint8]:
    """One image as [H, W, C] for a network that takes (channels, height, width), aspect not kept."""
    channels, height, width = image_shape
    rgb = _stretched(_rgb(picture, origin), height, width)
    # lossless for a grey image: the weights of three equal channels sum to one
    return np.asarray(rgb if channels == 3 else rgb.convert("L")).reshape(height, width, channels)


def resized(images: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    """[N, H, W, C] as [N, size, size, C], bilinear, aspect not kept."""
    if images.shape[1:3] == (size, size):
        return images
    out = np.empty((len(images), size, size, images.shape[3]), dtype=np.uint8)
    for index, image in enumerate(images):
        out[index] = np.asarray(_stretched(_from_pixels(image), size, size)).reshape(size, size, -1)
    return out


def _rgb(picture: Picture, origin: str) -> Image.Image:
    try:
        with _opened(picture) as opened:
            # Cameras store a photograph as the sensor saw it, and its orientation in the header.
            return _as_rgb(ImageOps.exif_transpose(opened), origin)
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{origin}: no such file") from None
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged input, SyntaxError included
        raise DataError(f"{origin}: not a readable image: {error or type(error).__name__}") from error


def _opened(picture: Picture) -> AbstractContextManager[Image.Image]:
    if isinstance(picture, Image.Image):
        return nullcontext(picture)  # closed by its owner
    if isinstance(picture, np.ndarray):
        return _from_pixels(picture)
    return Image.open(io.BytesIO(picture) if isinstance(picture, bytes) else picture)


def _as_rgb(picture: Image.Image, origin: str) -> Image.Image:
    if picture.mode.startswith("I;16"):
        # Pillow versions scale or clip these; the high byte is the visible image.
        return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8)).convert("RGB")
    if picture.mode in ("I", "F"):
        raise DataError(f"{origin}: has 32-bit pixels; store it with 8 or 16 bits a channel")
    return picture.convert("RGB")


def _from_pixels(image: npt.NDArray[np.uint8]) -> Image.Image:
    return Image.fromarray(image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image)


def _stretched(picture: Image.Image, height: int, width: int) -> Image.Image:
    return picture.resize((width, height), Image.Resampling.BILINEAR)
