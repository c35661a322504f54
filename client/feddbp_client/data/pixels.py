"""From pixels to what a network sees: the same for every image that is trained on, tested on or predicted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    import numpy.typing as npt


def channels_first(images: npt.NDArray[np.uint8]) -> torch.Tensor:
    """[N, H, W, C] as uint8 [N, C, H, W]."""
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))


def scaled(images: torch.Tensor) -> torch.Tensor:
    """uint8 as float32 with mean and deviation 0.5 in every channel, that is 0..255 to -1..1."""
    return images.float().div_(127.5).sub_(1)
