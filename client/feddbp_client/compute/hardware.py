"""The hardware of this machine as torch sees it; tests replace it by machines they do not have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from feddbp_common.cpu_cores import usable_cores


@dataclass(frozen=True, kw_only=True)
class Card:
    """A GPU that torch reaches by CUDA."""

    index: int
    name: str
    capability: tuple[int, int]
    """NVIDIA's compute capability: (7, 5) for the RTX 2080 Ti."""
    total_bytes: int


class Hardware(Protocol):
    """What devices are chosen by."""

    def cards(self) -> Sequence[Card]:
        """All CUDA GPUs, by index."""

    def has_mps(self) -> bool:
        """Whether there is an Apple GPU."""

    def free_bytes(self, device: torch.device) -> int:
        """Memory of a GPU that no process has allocated now."""

    def limit_memory(self, device: torch.device, share: float) -> None:
        """Lets this process allocate no more than a part of a GPU's memory."""

    def cores(self) -> int:
        """CPU cores this process may use."""


class TorchHardware:
    """This machine. Asking for a card's free memory starts CUDA on it, which itself takes some of that memory."""

    def cards(self) -> Sequence[Card]:
        if not torch.cuda.is_available():
            return ()
        return tuple(_card(index) for index in range(torch.cuda.device_count()))

    def has_mps(self) -> bool:
        return torch.backends.mps.is_available()

    def free_bytes(self, device: torch.device) -> int:
        if device.type == "cuda":
            return torch.cuda.mem_get_info(device)[0]
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()

    def limit_memory(self, device: torch.device, share: float) -> None:
        torch.cuda.set_per_process_memory_fraction(share, device)

    def cores(self) -> int:
        return usable_cores()


def _card(index: int) -> Card:
    properties = torch.cuda.get_device_properties(index)
    return Card(
        index=index,
        name=properties.name,
        capability=(properties.major, properties.minor),
        total_bytes=properties.total_memory,
    )
