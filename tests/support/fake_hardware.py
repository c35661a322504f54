"""Machines that tests do not have, as torch would describe them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch

from feddbp_client.compute.hardware import Card

GIB: Final = 2**30


@dataclass(frozen=True, kw_only=True)
class FakeHardware:
    """A machine with these cards; those not in `free` have all their memory free."""

    gpus: Sequence[Card] = ()
    mps: bool = False
    cpu_cores: int = 8
    free: Mapping[int, int] = field(default_factory=dict)
    limits: dict[int, float] = field(default_factory=dict)
    """The parts of cards' memory that this process was limited to."""

    def cards(self) -> Sequence[Card]:
        return self.gpus

    def has_mps(self) -> bool:
        return self.mps

    def free_bytes(self, device: torch.device) -> int:
        if device.type == "mps":
            return 16 * GIB
        return self.free.get(device.index, self.gpus[device.index].total_bytes)

    def limit_memory(self, device: torch.device, share: float) -> None:
        self.limits[device.index or 0] = share

    def cores(self) -> int:
        return self.cpu_cores


def cards(count: int, name: str, capability: tuple[int, int], gib: int) -> tuple[Card, ...]:
    return tuple(Card(index=index, name=name, capability=capability, total_bytes=gib * GIB) for index in range(count))


FOUR_2080_TI: Final = FakeHardware(gpus=cards(4, "NVIDIA GeForce RTX 2080 Ti", (7, 5), 11), cpu_cores=32)
ONE_A100: Final = FakeHardware(gpus=cards(1, "NVIDIA A100-SXM4-80GB", (8, 0), 80), cpu_cores=64)
ONE_H100: Final = FakeHardware(gpus=cards(1, "NVIDIA H100 80GB HBM3", (9, 0), 80), cpu_cores=64)
APPLE: Final = FakeHardware(mps=True, cpu_cores=10)
NO_GPU: Final = FakeHardware(cpu_cores=2)
