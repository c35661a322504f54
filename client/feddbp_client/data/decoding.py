"""Decodes and resizes pictures with Pillow, to RGB of 8 bits or to the deeper type of a client's pixels."""

from __future__ import annotations

import io
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from feddbp_client.data.images import DataError, UnreadableImageError, in_memory
from feddbp_client.data.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from feddbp_client.data.images import ImageRows

Picture: TypeAlias = str | Path | bytes | Image.Image | npt.NDArray[Any]
"""An image file, its content, or its pixels: [H, W] or [H, W, 1 or 3]."""
Values: TypeAlias = npt.NDArray[np.float32]
"""Pixels of more than 8 bits, [H, W, 1 or 3], as float32: it holds every uint16, and Pillow resizes it."""

UINT8: Final = np.dtype(np.uint8)
UINT16: Final = np.dtype(np.uint16)
FLOAT32: Final = np.dtype(np.float32)

MAX_PIXELS: Final = 1 << 26
"""Of one picture, 8192 x 8192: decoded it takes a few bytes for each, however few its file has."""
_FORMATS: Final = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Pillow has readers of many more, some of which start other programs; it goes by content, not by a file's name."""
_FORMATS_OF_16_BITS: Final = ("PNG", "PPM")
"""Their files have at most 16 bits per pixel, also where Pillow opens them with 32."""
_UINT16_PER_UINT8: Final = 257
"""255 becomes 65535."""
_LUMA: Final = np.array([0.299, 0.587, 0.114], dtype=np.float32)


def depth_of(picture: Image.Image) -> np.dtype[Any]:
    """The type of a picture's pixels: uint8, uint16 or float32."""
    if picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format in _FORMATS_OF_16_BITS):
        return UINT16
    return FLOAT32 if picture.mode in ("I", "F") else UINT8


def read_header(path: str, *, origin: str) -> tuple[tuple[int, int], np.dtype[Any], bool]:
    """Width and height, the type of pixels, and whether Pillow reads only half of their bits; decodes nothing."""
    with _as_data_error(origin), _opened(path) as picture:
        depth = depth_of(picture)
        # Pillow has no colours of 16 bits: it takes their high byte, and says so in the raw mode of the file's tiles.
        halved = depth == UINT8 and picture.format in ("PNG", "TIFF") and ";16" in str(picture.tile[:1])
        return picture.size, depth, halved


def decode(picture: Picture, *, origin: str, size: int | None = None, dtype: np.dtype[Any] = UINT8) -> npt.NDArray[Any]:
    """One image as RGB [H, W, 3]; with a size it is resized to a square of that side, aspect not kept.

    8 and 16 bits are converted into each other where dtype asks for it. Integers and floats have no common scale: one
    instead of the other is a DataError.
    """
    if dtype == UINT8:
        rgb = _rgb(picture, origin)
        return np.asarray(rgb if size is None else _stretched(rgb, size, size))
    values = _values(picture, dtype, origin)
    return _typed(_with_channels(values if size is None else _stretched_values(values, size, size), 3), dtype)


def decode_all(
    count: int, encoded: Callable[[int], tuple[bytes | Path, str]], *, size: int | None = None
) -> npt.NDArray[np.uint8]:
    """Decodes `count` images; encoded(i) gives file i and its origin. One array is filled, so memory never doubles."""
    content, origin = encoded(0)
    first = decode(content, origin=origin, size=size)
    images = np.empty((count, *first.shape), dtype=np.uint8)
    images[0] = first
    progress = Progress("read", count)
    for index in range(1, count):
        content, origin = encoded(index)
        image = decode(content, origin=origin, size=size)
        if image.shape != first.shape:
            raise DataError(f"{origin}: is {image.shape[1]}x{image.shape[0]}, others {first.shape[1]}x{first.shape[0]}")
        images[index] = image
        progress.advance()
    return images


def fitted(
    picture: Picture, image_shape: tuple[int, int, int], *, origin: str, dtype: np.dtype[Any] = UINT8
) -> npt.NDArray[Any]:
    """One image as [H, W, C] for a network that takes (channels, height, width), aspect not kept."""
    channels, height, width = image_shape
    if dtype != UINT8:
        values = _stretched_values(_values(picture, dtype, origin), height, width)
        return _typed(_with_channels(values, channels), dtype)
    rgb = _stretched(_rgb(picture, origin), height, width)
    # lossless for a grey image: the weights of three equal channels sum to one
    return np.asarray(rgb if channels == 3 else rgb.convert("L")).reshape(height, width, channels)


def equal_sizes(*parts: ImageRows) -> npt.NDArray[np.int32]:
    """The width and height of every image of parts with one size, [N, 2]."""
    _, height, width, _ = parts[0].shape
    return np.broadcast_to(np.array([width, height], dtype=np.int32), (sum(map(len, parts)), 2))


def scaling_note(sizes: npt.NDArray[np.int32], side: int, *, chosen: bool) -> str:
    """What images with these widths and heights, [N, 2], are scaled to, as text for the log."""
    area = sizes.prod(axis=1, dtype=np.int64)
    smallest, largest = (f"{width}x{height}" for width, height in sizes[[area.argmin(), area.argmax()]].tolist())
    found = smallest if smallest == largest else f"{smallest} to {largest}"
    how = "the run's --image-size" if chosen else "set the run's --image-size to change it"
    return f"{len(sizes):,} images, {found}, scaled to {side}x{side} (aspect not kept); {how}"


def resized(images: ImageRows, size: int) -> npt.NDArray[Any]:
    """[N, H, W, C] as [N, size, size, C], bilinear, aspect not kept."""
    pixels = in_memory(images)
    if pixels.shape[1:3] == (size, size):
        return pixels
    needed, memory = len(pixels) * size * size * pixels.shape[3] * pixels.dtype.itemsize, _machine_memory()
    if needed > memory // 2:  # the run's configuration asks for it, and that is another's
        raise DataError(
            f"{len(pixels):,} images scaled to {size}x{size} take {needed / 1e9:.1f} GB, and this machine has "
            f"{memory / 1e9:.1f} GB; a smaller --image-size of the run takes less"
        )
    out = np.empty((len(pixels), size, size, pixels.shape[3]), dtype=pixels.dtype)
    progress = Progress("scaled", len(pixels))
    for index, image in enumerate(pixels):
        if pixels.dtype == UINT8:
            out[index] = np.asarray(_stretched(_from_pixels(image), size, size)).reshape(size, size, -1)
        else:
            out[index] = _typed(_stretched_values(image.astype(np.float32), size, size), pixels.dtype)
        progress.advance()
    return out


def _machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _rgb(picture: Picture, origin: str) -> Image.Image:
    with _as_data_error(origin), _upright(picture) as (upright, depth):
        if depth == FLOAT32:
            raise _no_common_scale(origin, depth, UINT8)
        if depth == UINT16:
            # Pillow versions scale or clip these; the high byte is the visible image.
            return Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8)).convert("RGB")
        if upright.mode == "RGB":  # conversion would copy it
            upright.load()
            return upright
        return upright.convert("RGB")


def _values(picture: Picture, dtype: np.dtype[Any], origin: str) -> Values:
    """Pixels on the scale of dtype, which is uint16 or float32."""
    with _as_data_error(origin):
        pixels = _checked_array(picture) if isinstance(picture, np.ndarray) else _deep_pixels(picture)
    if (pixels.dtype == FLOAT32) != (dtype == FLOAT32):
        raise _no_common_scale(origin, pixels.dtype, dtype)
    values = pixels.astype(np.float32)
    if not np.isfinite(values).all():
        raise UnreadableImageError(origin, "NaN or infinite pixels")
    return values * _UINT16_PER_UINT8 if pixels.dtype == UINT8 else values


def _deep_pixels(picture: str | Path | bytes | Image.Image) -> npt.NDArray[Any]:
    """[H, W, 1 or 3] of uint8, uint16 or float32."""
    with _upright(picture) as (upright, depth):
        pixels = np.asarray(upright.convert("RGB") if depth == UINT8 else upright).astype(depth)
    return pixels if pixels.ndim == 3 else pixels[..., np.newaxis]


def _checked_array(pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[H, W, 1 or 3] of uint8, uint16 or float32."""
    if pixels.ndim == 2:
        pixels = pixels[..., np.newaxis]
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3):
        raise ValueError(f"its shape is {pixels.shape}, expected [H, W] or [H, W, 1 or 3]")
    if pixels.dtype.kind == "f":
        return pixels.astype(np.float32)
    if pixels.dtype not in (UINT8, UINT16):
        raise ValueError(f"its pixels are {pixels.dtype}, expected uint8, uint16 or floats")
    return pixels


def _no_common_scale(origin: str, found: np.dtype[Any], expected: np.dtype[Any]) -> DataError:
    return DataError(f"{origin}: has {found} pixels, expected {expected}; integers and floats have no common scale")


@contextmanager
def _as_data_error(origin: str) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{origin}: no such file") from None
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged input, SyntaxError included
        raise UnreadableImageError(origin, str(error) or type(error).__name__) from error


def _opened(file: str | Path | io.BytesIO) -> ImageFile.ImageFile:
    """Reads the header of a picture, and refuses it before anything is decoded."""
    try:
        picture = Image.open(file, formats=_FORMATS)
    except UnidentifiedImageError:
        raise ValueError("not an image") from None
    width, height = picture.size
    if width * height > MAX_PIXELS:
        picture.close()
        raise ValueError(f"it has {width}x{height} pixels, at most {MAX_PIXELS:,} are read; scale it down")
    return picture


@contextmanager
def _upright(picture: Picture) -> Iterator[tuple[Image.Image, np.dtype[Any]]]:
    """The picture, turned as it is to be seen, and the type of its pixels.

    Cameras store a photograph as the sensor saw it, and its orientation in the header.
    """
    if isinstance(picture, Image.Image):  # its owner closes it, and does not expect it to turn
        yield ImageOps.exif_transpose(picture), depth_of(picture)
        return
    if isinstance(picture, np.ndarray):
        opened = _from_pixels(picture)
    else:
        opened = _opened(io.BytesIO(picture) if isinstance(picture, bytes) else picture)
    with opened:
        depth = depth_of(opened)
        ImageOps.exif_transpose(opened, in_place=True)
        yield opened, depth


def _from_pixels(image: npt.NDArray[Any]) -> Image.Image:
    return Image.fromarray(image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image)


def _stretched(picture: Image.Image, height: int, width: int) -> Image.Image:
    return picture.resize((width, height), Image.Resampling.BILINEAR)


def _stretched_values(values: Values, height: int, width: int) -> Values:
    if values.shape[:2] == (height, width):
        return values
    planes = [_stretched(Image.fromarray(plane), height, width) for plane in np.moveaxis(values, 2, 0)]
    return np.stack([np.asarray(plane) for plane in planes], axis=2)


def _with_channels(values: Values, channels: int) -> Values:
    if values.shape[2] == channels:
        return values
    return np.repeat(values, channels, axis=2) if channels == 3 else (values @ _LUMA)[..., np.newaxis]


def _typed(values: Values, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.rint(values).astype(np.uint16) if dtype == UINT16 else values
