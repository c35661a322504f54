"""The element type of a client's passes: float32, or a half type in mixed precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

import torch
from torch import Tensor, nn

from feddbp_client.compute.devices import CPU, card_of
from feddbp_client.compute.hardware import Hardware

_FIRST_WITH_BFLOAT16: Final = (8, 0)
"""Older cards only emulate it, slowly; torch.cuda.is_bf16_supported() counts that as support."""

_FIRST_SCALE: Final = 1024.0
"""Steps whose scaled gradients overflow are skipped, and every round has a new scaler: from torch's first scale, 65536,
MobileNetV2 and GoogLeNet skip at least the first five steps of a round, from this one none."""


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Mixed precision, if `half` is set: backbones compute in that type, everything after them in float32."""

    device: torch.device = CPU
    half: torch.dtype | None = None

    @classmethod
    def mixed(cls, device: torch.device, hardware: Hardware) -> Self:
        """The half type that the device computes in itself: bfloat16, or float16 where a card has no bfloat16."""
        card = card_of(device, hardware)
        emulated = card is not None and card.capability < _FIRST_WITH_BFLOAT16
        return cls(device=device, half=torch.float16 if emulated else torch.bfloat16)

    def scaler(self) -> torch.amp.GradScaler:
        """Scales losses for float16, whose gradients underflow; does nothing for other types."""
        return torch.amp.GradScaler(self.device.type, init_scale=_FIRST_SCALE, enabled=self.half is torch.float16)

    def __str__(self) -> str:
        return str(self.half or torch.float32).removeprefix("torch.")


def compute_narrow_maps_exactly(network: nn.Module) -> None:
    """Has convolutions compute maps of width one in float32, in place, also within autocast.

    In bfloat16 on a CPU, oneDNN (as of torch 2.13) leaves out part of the gradient of a kernel that is wider than its
    map, and whatever was in that memory before enters the weights.
    """
    for part in network.modules():
        if isinstance(part, nn.Conv2d) and part.kernel_size[1] > 1:
            part.forward = partial(_exact_if_narrow, part.forward)  # type: ignore[method-assign]


def _exact_if_narrow(forward: Callable[[Tensor], Tensor], maps: Tensor) -> Tensor:
    if maps.shape[-1] > 1:
        return forward(maps)
    with torch.autocast(maps.device.type, enabled=False):
        return forward(maps.float())
