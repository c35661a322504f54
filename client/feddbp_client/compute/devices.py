"""The device of each client: the one that was asked for, or several cards shared out by their free memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import torch

from feddbp_client.compute.hardware import Card, Hardware, TorchHardware
from feddbp_client.config import Gpus
from feddbp_common.errors import ConfigurationError

CPU: Final = torch.device("cpu")
_LONGEST_NAME: Final = 100
"""Servers refuse descriptions of more than 256 characters."""


def choose_device(device: str, hardware: Hardware | None = None) -> torch.device:
    """The device by name, or the best for `auto`; raises ConfigurationError if torch cannot use it here."""
    hardware = hardware or TorchHardware()
    if device == "auto":
        return _best_available(hardware)
    try:
        selected = torch.device(device)
    except RuntimeError:
        raise ConfigurationError(f"--device {device}: not a device; give cpu, cuda:N or mps") from None
    if selected.type == "cuda":
        return _device_of(_cards_named([selected.index or 0], f"--device {device}", hardware)[0])
    if selected.type == "mps" and not hardware.has_mps():
        raise ConfigurationError("--device mps: torch sees no Apple GPU here")
    if selected.type not in ("cpu", "mps"):
        raise ConfigurationError(f"--device {device}: not supported; give cpu, cuda:N or mps")
    return selected


def choose_devices(
    client_ids: Sequence[int], *, gpu: Gpus, device: str, hardware: Hardware
) -> Mapping[int, torch.device]:
    """A device for each client of a process; several cards are shared out by their free memory."""
    if gpu is None:
        return dict.fromkeys(client_ids, choose_device(device, hardware))
    flag = f"--gpu {gpu if gpu == 'auto' else ','.join(map(str, gpu))}"
    asked = range(max(1, len(hardware.cards()))) if gpu == "auto" else gpu
    devices = [_device_of(card) for card in _cards_named(asked, flag, hardware)]
    if len(devices) == 1:  # asking for the free memory would start CUDA before it is needed
        return dict.fromkeys(client_ids, devices[0])
    return share_out(client_ids, {device: hardware.free_bytes(device) for device in devices})


def share_out(client_ids: Sequence[int], free: Mapping[torch.device, int]) -> dict[int, torch.device]:
    """Gives each client the device that then has the most free memory per client; the first of equal ones."""
    assigned: Counter[torch.device] = Counter()
    shared: dict[int, torch.device] = {}
    for client_id in client_ids:
        shared[client_id] = max(free, key=lambda device: free[device] / (assigned[device] + 1))
        assigned[shared[client_id]] += 1
    return shared


def card_of(device: torch.device, hardware: Hardware) -> Card | None:
    """The CUDA GPU behind a device; None for any other device."""
    return hardware.cards()[device.index or 0] if device.type == "cuda" else None


def describe(device: torch.device, hardware: Hardware) -> str:
    """The device with the name of its card, in printable characters: `cuda:1 (NVIDIA GeForce RTX 2080 Ti)`."""
    card = card_of(device, hardware)
    if card is None:
        return str(device)
    name = "".join(letter for letter in card.name[:_LONGEST_NAME] if letter.isprintable())
    return f"{device} ({name.strip()})"


def _best_available(hardware: Hardware) -> torch.device:
    cards = hardware.cards()
    if cards:
        return _device_of(cards[0])
    return torch.device("mps") if hardware.has_mps() else CPU


def _cards_named(indices: Sequence[int], flag: str, hardware: Hardware) -> list[Card]:
    cards = hardware.cards()
    if any(index >= len(cards) for index in indices):
        seen = f"{len(cards)} (0 to {len(cards) - 1})" if cards else "no GPU"
        raise ConfigurationError(f"{flag}: torch sees {seen} here; use --device cpu to train without one")
    return [cards[index] for index in indices]


def _device_of(card: Card) -> torch.device:
    return torch.device("cuda", card.index)
