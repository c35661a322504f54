"""Device, precision and data placement of a client's training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from feddbp_common.errors import ConfigurationError


def choose_device(*, gpu: int | None, device: str) -> torch.device:
    """The requested device; raises ConfigurationError if torch cannot use it here."""
    if gpu is not None:
        return _cuda(gpu, f"--gpu {gpu}")
    if device == "auto":
        return _best_available()
    try:
        selected = torch.device(device)
    except RuntimeError:
        raise ConfigurationError(f"--device {device}: not a device; give cpu, cuda:N or mps") from None
    if selected.type == "cuda":
        return _cuda(selected.index or 0, f"--device {device}")
    if selected.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigurationError("--device mps: torch sees no Apple GPU here")
    if selected.type not in ("cpu", "mps"):
        raise ConfigurationError(f"--device {device}: not supported; give cpu, cuda:N or mps")
    return selected


def _best_available() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def _cuda(index: int, flag: str) -> torch.device:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index >= count:
        seen = "no GPU" if count == 0 else f"{count} (0 to {count - 1})"
        raise ConfigurationError(f"{flag}: torch sees {seen} here; use --device cpu to train without one")
    return torch.device("cuda", index)


@dataclass(frozen=True)
class Precision:
    """Mixed precision, if enabled. Without it a run on CPU is reproducible bit for bit."""

    device: torch.device
    amp: bool

    @property
    def _dtype(self) -> torch.dtype:
        half = self.device.type == "cuda" and not torch.cuda.is_bf16_supported()
        return torch.float16 if half else torch.bfloat16

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, dtype=self._dtype) if self.amp else nullcontext()

    def scaler(self) -> torch.amp.GradScaler:
        """Scales losses for float16, whose gradients underflow; does nothing for other types."""
        return torch.amp.GradScaler(self.device.type, enabled=self.amp and self._dtype is torch.float16)


@contextmanager
def releasing_gpu_memory(device: torch.device) -> Iterator[None]:
    """Returns cached GPU memory to other processes on exit."""
    try:
        yield
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()
