"""The random generators that a client's training draws from: torch's on the host, and that of its own device."""

from __future__ import annotations

import torch

from feddbp_client.compute.devices import CPU


def seed_generators(seed: int, device: torch.device) -> None:
    """Seeds them; those of other devices keep their state, because other clients may be training there."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


class RandomState:
    """Their state at some moment, to be returned to."""

    def __init__(self, device: torch.device = CPU) -> None:
        self._device = device
        self._on_host = torch.get_rng_state()
        self._on_device: torch.Tensor | None = None
        if device.type == "cuda":
            self._on_device = torch.cuda.get_rng_state(device)
        elif device.type == "mps":
            self._on_device = torch.mps.get_rng_state()

    def restore(self) -> None:
        torch.set_rng_state(self._on_host)
        if self._on_device is None:
            return
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(self._on_device, self._device)
        else:
            torch.mps.set_rng_state(self._on_device)
