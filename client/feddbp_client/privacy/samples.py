"""Whether one sample of a client changes nothing of the others, as differential privacy needs it."""

from __future__ import annotations

from pathlib import Path

from feddbp_client.data import DataError, ImageParts
from feddbp_client.data.pixels import pixel_range


def check_samples_apart(parts: ImageParts, path: Path) -> None:
    """Raises DataError if which samples are for training, or how they are scaled, depends on all of them."""
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
