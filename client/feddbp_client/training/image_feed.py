"""A split's images on the way to a network: kept as the bytes they were stored as, converted on the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from feddbp_client.data import ImageRows
from feddbp_client.data.batches import channels_first, scaled


class ImageFeed:
    """The images of a split, read by position.

    `feed[positions]` gives network input. `batches` gives the stored pixels, for augmentation before they are scaled.
    """

    def __init__(self, images: ImageRows, device: torch.device) -> None:
        self._device = device
        self._pixels = channels_first(images[np.arange(len(images))]).to(device)

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, positions: slice | Tensor) -> Tensor:
        """Network input, float32 [n, channels, height, width] in [-1, 1] on the device."""
        return scaled(self._pixels[positions])

    def batches(self, positions: Iterable[Tensor]) -> Iterator[Tensor]:
        """The stored pixels of each batch, [n, channels, height, width] on the device."""
        for index in positions:
            yield self._pixels[index.to(self._device)]
