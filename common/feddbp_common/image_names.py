"""Which files are taken for images, by their name: those a client reads from a folder, and `feddbp predict`."""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

_SUFFIXES: Final = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})


def is_image_name(file: PurePath) -> bool:
    """Whether the suffix is an image's; hidden files are not, such as those that a Mac leaves beside others."""
    return file.suffix.lower() in _SUFFIXES and not file.name.startswith(".")
