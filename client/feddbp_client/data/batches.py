"""Batches: the order of samples in an epoch, and pixels as network input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import torch

from feddbp_client.data.pixels import BYTES, PixelRange

if TYPE_CHECKING:
    import numpy.typing as npt

Remainder = Literal["keep", "merge", "drop"]

_FEWEST_IN_BATCH: Final = 2
"""Batch normalisation needs more than one sample for a variance."""


def batches(
    samples: int,
    *,
    batch_size: int,
    generator: torch.Generator,
    remainder: Remainder = "keep",
    htfllib_loader: bool = False,
) -> list[torch.Tensor]:
    """Index tensors of one epoch, in an order drawn from the generator; each sample at most once.

    The remainder is a last batch that is smaller than the others: `keep` leaves it out only if it is a single sample,
    `merge` adds it to the batch before if it is smaller than half a batch, `drop` leaves it out; where it is the only
    batch it is kept. With htfllib_loader, as in HtFLlib, the order is 0..samples-1 in every epoch, any partial batch is
    left out, and the generator is not used; fewer samples than batch_size then give no batch.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}, it must be positive")
    if htfllib_loader:
        return [batch for batch in torch.arange(samples).split(batch_size) if len(batch) == batch_size]
    parts = list(torch.randperm(samples, generator=generator).split(batch_size))
    if len(parts) > 1 and remainder == "drop" and len(parts[-1]) < batch_size:
        del parts[-1]
    elif len(parts) > 1 and remainder == "merge" and 2 * len(parts[-1]) < batch_size:
        parts[-2:] = [torch.cat(parts[-2:])]
    fewest = min(_FEWEST_IN_BATCH, batch_size)
    return [batch for batch in parts if len(batch) >= fewest]


def channels_first(images: npt.NDArray[Any]) -> torch.Tensor:
    """[N, H, W, C] as [N, C, H, W] of the same type, but uint16 as int16 with the same bits.

    torch has few operations on uint16, and fewer on a GPU.
    """
    pixels = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    return torch.from_numpy(pixels.view(np.int16) if pixels.dtype == np.uint16 else pixels)


def scaled(images: torch.Tensor, pixels: PixelRange = BYTES) -> torch.Tensor:
    """Stored pixels as float32, the range's ends as -1 and 1: for bytes, mean and deviation 0.5 in every channel."""
    match pixels.dtype:
        case "uint8":
            return images.float().div_(127.5).sub_(1)
        case "uint16":
            # the bits of uint16 as int16, or in an exported model uint16 itself
            return (images.int() & 0xFFFF).float().div_(32767.5).sub_(1)
        case "float32":
            # float() changes nothing but makes torch.export check the type of its input
            return images.float().sub(pixels.low).div_((pixels.high - pixels.low) / 2).sub_(1)
