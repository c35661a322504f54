"""A split's images on the way to a network: kept as the bytes they were stored as, converted on the device."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import torch
from torch import Tensor

from feddbp_client.compute.memory import ImageBudget
from feddbp_client.compute.out_of_memory import is_out_of_memory
from feddbp_client.compute.transfers import CudaLink, DoubleBuffer, Link, read_ahead
from feddbp_client.data import ImageRows
from feddbp_client.data.batches import channels_first, scaled
from feddbp_client.data.pixels import BYTES, PixelRange

log = logging.getLogger("feddbp.client")

_AHEAD: Final = 2
"""Batches that are read before they are needed."""
_ROWS_AT_ONCE: Final = 256
"""Rows that are read at once while a split is loaded to a device."""


class ImageFeed:
    """The images of a split, read by position.

    `feed[positions]` gives network input. `batches` gives the stored pixels, for augmentation before they are scaled.

    If the budget has room for them, the images stay in the device's memory. Otherwise they are read and copied batch by
    batch, by a thread that is a few batches ahead. On a CPU an array in memory is indexed, anything else read ahead.
    """

    def __init__(
        self,
        images: ImageRows,
        device: torch.device,
        budget: ImageBudget | None = None,
        link: Link | None = None,
        *,
        pixels: PixelRange = BYTES,
    ) -> None:
        """The link to the device is for tests; by default it is chosen by the device."""
        self._images = images
        self._device = device
        self._range = pixels
        self._link = CudaLink(device) if link is None and device.type == "cuda" else link
        self._on_device: Tensor | None = None
        size = int(np.prod(images.shape, dtype=np.int64)) * images.dtype.itemsize
        if budget is not None and budget.reserve(size, owner=self):
            self._on_device = _loaded(images, device)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, positions: slice | Tensor) -> Tensor:
        """Network input, float32 [n, channels, height, width] on the device."""
        if isinstance(positions, slice):
            positions = torch.arange(*positions.indices(len(self)))
        return scaled(self._selected(positions), self._range)

    def batches(self, positions: Iterable[Tensor]) -> Iterator[Tensor]:
        """The stored pixels of each batch, [n, channels, height, width] on the device."""
        in_memory = isinstance(self._images, np.ndarray) and not isinstance(self._images, np.memmap)
        if self._on_device is not None or (in_memory and self._device.type == "cpu"):
            return map(self._selected, positions)
        if self._link is None:
            return (pixels.to(self._device) for pixels in read_ahead(self._read, positions, ahead=_AHEAD))
        buffers = DoubleBuffer(self._link)
        sent = read_ahead(lambda rows: buffers.send(self._read(rows)), positions, ahead=_AHEAD)
        return (transfer.tensor() for transfer in sent)

    def _selected(self, positions: Tensor) -> Tensor:
        """A copy of the pixels at these positions, on the device."""
        if self._on_device is None:
            return self._read(positions).to(self._device)
        return self._on_device[positions.to(self._device, non_blocking=True)]

    def _read(self, positions: Tensor) -> Tensor:
        return channels_first(self._images[positions.cpu().numpy()])


def _loaded(images: ImageRows, device: torch.device) -> Tensor | None:
    """All images in the memory of a device, read in parts; None if the device has no room for them after all."""
    count, height, width, channels = images.shape
    stored = channels_first(np.empty((0, height, width, channels), images.dtype)).dtype
    try:
        on_device = torch.empty((count, channels, height, width), dtype=stored, device=device)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        log.warning("%s is out of memory for images, which are copied batch by batch instead", device)
        return None
    for rows in np.split(np.arange(count), range(_ROWS_AT_ONCE, count, _ROWS_AT_ONCE)):
        on_device[rows[0] : rows[-1] + 1] = channels_first(images[rows]).to(device)
    return on_device
