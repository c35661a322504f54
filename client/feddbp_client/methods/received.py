"""Per-class vectors from the server as a dense table for a training step, with a mask of the classes that have one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from feddbp_client.losses import directions
from feddbp_common.wire import PrototypeSet


@dataclass(frozen=True, eq=False)
class ClassTable:
    """A row per class of the run, looked up by label without a loop and without synchronising the device."""

    vectors: Tensor
    """[C, width], zero where the class has no row."""
    known: Tensor
    """bool [C]."""
    directions: Tensor = field(init=False)
    """The vectors at length one, in float64 where the device has it."""
    training_directions: Tensor = field(init=False)
    """The directions in the precision of the vectors."""

    def __post_init__(self) -> None:
        # Computed once, as they stay the same for many steps; and not on first use, which may be an evaluation: tensors
        # made in inference mode cannot be used for training.
        object.__setattr__(self, "directions", directions(self.vectors))
        object.__setattr__(self, "training_directions", self.directions.to(self.vectors.dtype))

    @classmethod
    def from_prototypes(cls, received: PrototypeSet | None, *, classes: int, device: torch.device) -> Self | None:
        """The table of received prototypes; None while there are none."""
        if received is None or not len(received):
            return None
        class_ids = torch.from_numpy(received.class_ids).long()
        vectors = torch.zeros(classes, received.vectors.shape[1])
        vectors[class_ids] = torch.tensor(received.vectors)
        known = torch.zeros(classes, dtype=torch.bool)
        known[class_ids] = True
        return cls(vectors.to(device), known.to(device))
