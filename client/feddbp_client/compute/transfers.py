"""Copies from the host to a device while the device computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

import torch
from torch import Tensor

S = TypeVar("S")
T = TypeVar("T")


class Transfer(Protocol):
    """A copy on its way to a device."""

    def wait(self) -> None:
        """Returns when the source has been read and may be overwritten."""

    def tensor(self) -> Tensor:
        """The copy, for work that the caller's thread starts from now on."""


class Link(Protocol):
    """The way to a device."""

    def buffer(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Memory of the host that can be sent."""

    def send(self, source: Tensor) -> Transfer:
        """Begins to copy part of a buffer and returns before that is done."""


class DoubleBuffer:
    """Two buffers that are filled and sent in turn. For one thread, which waits for a buffer to be free."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._waiting: deque[tuple[Tensor, Transfer | None]] = deque([(torch.empty(0), None)] * 2)

    def send(self, pixels: Tensor) -> Transfer:
        """Copies the pixels, in any memory layout, to a buffer and begins to send it."""
        buffer, sent = self._waiting.popleft()
        if sent is not None:
            sent.wait()
        if buffer.dtype != pixels.dtype or len(buffer) < len(pixels):
            buffer = self._link.buffer(pixels.shape, pixels.dtype)
        part = buffer[: len(pixels)]
        part.copy_(pixels)
        transfer = self._link.send(part)
        self._waiting.append((buffer, transfer))
        return transfer


class CudaLink:
    """Sends pinned memory in a stream of its own, beside the computations of the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def buffer(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

    def send(self, source: Tensor) -> CudaTransfer:
        with torch.cuda.stream(self._stream):
            copy = source.to(self._device, non_blocking=True)
        sent = torch.cuda.Event(blocking=True)
        sent.record(self._stream)
        return CudaTransfer(copy, sent)


class CudaTransfer:
    def __init__(self, copy: Tensor, sent: torch.cuda.Event) -> None:
        self._copy = copy
        self._sent = sent

    def wait(self) -> None:
        self._sent.synchronize()

    def tensor(self) -> Tensor:
        computing = torch.cuda.current_stream(self._copy.device)
        computing.wait_event(self._sent)
        # the memory was allocated in the other stream, which must not reuse it before this one is done with it
        self._copy.record_stream(computing)
        return self._copy


def read_ahead(read: Callable[[S], T], items: Iterable[S], *, ahead: int) -> Iterator[T]:
    """Yields read(item) for all items in order; a thread reads so many of them before they are asked for."""
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as reader:
        waiting: deque[Future[T]] = deque()
        try:
            for item in items:
                waiting.append(reader.submit(read, item))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # the caller may have stopped early
            for future in waiting:
                future.cancel()
