"""Out of memory on a device: computed again in smaller chunks where that is allowed, else an error that helps."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import torch
from torch import nn

from feddbp_client.compute.devices import card_of
from feddbp_client.compute.plan import Compute, gibibytes
from feddbp_client.models.blocks import backbones_in
from feddbp_client.models.chunks import fewest_in_chunk
from feddbp_client.training.errors import TrainingError

log = logging.getLogger("feddbp.client")
T = TypeVar("T")

_MARKS: Final = ("out of memory", "ALLOC_FAILED", "can't allocate memory")
"""In errors of CUDA and Apple's GPUs, of cuBLAS and cuDNN, and of the host's allocator."""


class Restorable(Protocol):
    """The state of something at the start of a computation."""

    def restore(self) -> None: ...


@dataclass(kw_only=True)
class Pass:
    """A kind of pass over batches, and the chunks its batches are computed in."""

    name: str
    batch: int
    may_chunk: bool = True
    trains: bool = False
    chunk: int | None = None

    @property
    def size(self) -> int:
        """Most images that are computed at once."""
        return self.chunk or self.batch


class MemoryGuard:
    """Runs the passes of a client. One for which the device has too little memory starts again in chunks of half."""

    def __init__(self, method: nn.Module, compute: Compute, *, client_id: int, image_shape: Sequence[int]) -> None:
        self._method = method
        self._compute = compute
        self._client_id = client_id
        self._image_shape = image_shape

    def run(self, kind: Pass, work: Callable[[], T], start: Restorable) -> T:
        """The result of `work`, which starts from `start` and is repeated from there in smaller chunks.

        The chunks that fit are kept for later passes of the kind. A repeated pass has the same result as one that
        started with its chunks.

        Raises:
            TrainingError: if the device is out of memory and smaller chunks are not allowed or not possible.
        """
        while True:
            for backbone in backbones_in(self._method):
                backbone.chunk = kind.chunk
            try:
                return work()
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                log.debug("out of memory", exc_info=True)
                state = self._state(kind)
            # only here has the traceback released the tensors of the failed pass
            self._method.zero_grad(set_to_none=True)
            self._release_cached_memory()
            smaller = self._smaller(kind)
            if smaller is None:
                raise TrainingError(f"{state}; {self._advice(kind)}")
            log.warning(
                "client %d: %s; starting it again in chunks of %d%s",
                self._client_id,
                state,
                smaller,
                ", each with batch norm statistics of its own" if fewest_in_chunk(self._method) > 1 else "",
            )
            kind.chunk = smaller
            start.restore()

    def _smaller(self, kind: Pass) -> int | None:
        possible = any(backbones_in(self._method)) and kind.size > fewest_in_chunk(self._method)
        return max(fewest_in_chunk(self._method), kind.size // 2) if kind.may_chunk and possible else None

    def _state(self, kind: Pass) -> str:
        device, hardware = self._compute.device, self._compute.hardware
        card = card_of(device, hardware)
        memory = ""
        if card is not None:
            memory = f" with {gibibytes(hardware.free_bytes(device))} of {gibibytes(card.total_bytes)} free"
        images = f"{kind.size} image{'s' * (kind.size > 1)} of {'x'.join(map(str, self._image_shape))}"
        return f"{self._compute} is out of memory{memory} in {kind.name} on {images} in {self._compute.precision}"

    def _advice(self, kind: Pass) -> str:
        here = {
            "--amp": self._compute.precision.half is None,
            "fewer --jobs-per-gpu": self._compute.streams is not None,
            "a smaller --image-memory": self._compute.image_budget.limit > 0,
            "a device with more memory": True,
        }
        on_server = {"--accumulate": kind.trains and not kind.may_chunk, "a smaller --batch-size": kind.trains}
        places = (_listed(here, before="the client "), _listed(on_server, before="the server "))
        return "give " + ", or ".join(filter(None, places))

    def _release_cached_memory(self) -> None:
        gc.collect()
        if self._compute.device.type == "cuda":
            torch.cuda.empty_cache()
        elif self._compute.device.type == "mps":
            torch.mps.empty_cache()


def _listed(proposals: Mapping[str, bool], *, before: str) -> str:
    """The proposals that apply, as `a, b or c`; empty if none does."""
    *first, last = [proposal for proposal, applies in proposals.items() if applies] or [""]
    return f"{before}{', '.join(first)}{' or ' if first else ''}{last}" if last else ""


def is_out_of_memory(error: Exception) -> bool:
    """Whether a device, or a library on it, had too little memory."""
    return isinstance(error, torch.cuda.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(mark in str(error) for mark in _MARKS)
    )
