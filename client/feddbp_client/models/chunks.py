"""A batch in chunks: the output of the whole batch in the memory of a part of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def in_chunks(forward: Callable[[Tensor], Tensor], network: nn.Module, images: Tensor, *, most: int) -> Tensor:
    """The output of `forward`, which runs `network`, on chunks of at most `most` images.

    The gradient is that of the whole batch, whatever is computed from the output: activations of a chunk are not stored
    but computed again in the backward pass, with the same random numbers. Statistics of batch norm are per chunk; the
    second computation does not change its running statistics. It gets two images at least, so three of an odd batch.
    """
    chunks = images.tensor_split(_chunks_for(len(images), most, fewest_in_chunk(network)))
    if not torch.is_grad_enabled():
        return torch.cat([forward(chunk) for chunk in chunks])
    return torch.cat([_recomputed(forward, network, chunk) for chunk in chunks])


def fewest_in_chunk(network: nn.Module) -> int:
    """Two where batch norm is trained, which needs more than one sample for a variance."""
    return 2 if any(isinstance(part, _BatchNorm) and part.training for part in network.modules()) else 1


def _chunks_for(images: int, most: int, fewest: int) -> int:
    return max(1, min(math.ceil(images / most), images // fewest))


def _recomputed(forward: Callable[[Tensor], Tensor], network: nn.Module, chunk: Tensor) -> Tensor:
    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        buffers = _Buffers(network)
        return buffers.remembered(), buffers.as_remembered()

    output: Tensor = checkpoint(forward, chunk, use_reentrant=False, context_fn=contexts)
    return output


class _Buffers:
    """Buffers such as running statistics, which a second computation has to find, and leave, as if it were none."""

    def __init__(self, network: nn.Module) -> None:
        self._buffers = list(network.buffers())
        self._before: list[Tensor] = []

    @contextmanager
    def remembered(self) -> Iterator[None]:
        self._before = self._copies()
        yield

    @contextmanager
    def as_remembered(self) -> Iterator[None]:
        after = self._copies()
        self._set(self._before)
        try:
            yield
        finally:
            self._set(after)

    def _copies(self) -> list[Tensor]:
        return [buffer.detach().clone() for buffer in self._buffers]

    def _set(self, values: list[Tensor]) -> None:
        for buffer, value in zip(self._buffers, values, strict=True):
            buffer.data.copy_(value)  # .data: autograd has stored buffers, and would see a change of their version
