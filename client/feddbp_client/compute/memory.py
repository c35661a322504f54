"""Memory of a device that the clients of a process share: a budget for images, and streams."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Final

import torch

from feddbp_client.compute.hardware import Hardware

_DEFAULT_SHARE: Final = 4
"""By default images may take a fourth of the memory that is free when the process starts."""


class ImageBudget:
    """Device memory for images: those that fit stay on the device, the others are copied batch by batch."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._left = limit
        self._lock = threading.Lock()

    @classmethod
    def for_device(
        cls, device: torch.device, hardware: Hardware, limit: int | None, process_share: float = 1.0
    ) -> ImageBudget:
        """A budget of `limit` bytes or, without one, of a share of what the process may take; none on the CPU."""
        if device.type == "cpu":
            return cls(0)
        if limit is not None:
            return cls(limit)
        free = hardware.free_bytes(device)
        if device.type == "cuda":
            free = min(free, int(hardware.cards()[device.index or 0].total_bytes * process_share))
        return cls(free // _DEFAULT_SHARE)

    def reserve(self, size: int, owner: object) -> bool:
        """Takes so many bytes until `owner` is garbage-collected; False if not as many are left."""
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
        weakref.finalize(owner, self.release, size).atexit = False
        return True

    def release(self, size: int) -> None:
        with self._lock:
            self._left += size


class StreamPool:
    """As many CUDA streams as clients train at the same time on a card: those of one stream wait for each other."""

    def __init__(self, device: torch.device, count: int) -> None:
        self._device = device
        self._free: SimpleQueue[torch.cuda.Stream | None] = SimpleQueue()
        for _ in range(count):
            self._free.put(None)  # made when it is needed

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Runs the block in a stream that no other thread uses, and waits until the device has done its work."""
        stream = self._free.get()
        try:
            stream = stream or torch.cuda.Stream(self._device)
            stream.wait_stream(torch.cuda.default_stream(self._device))  # on which images were loaded
            with torch.cuda.stream(stream):
                yield
            stream.synchronize()
        finally:
            self._free.put(stream)
