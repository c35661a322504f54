"""What the server sent per class, laid out for a training step: dense by class id, with a mask of who has a row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from feddbp_client.losses import directions
from feddbp_common.wire import PrototypeSet


@dataclass(frozen=True, eq=False)
class ClassTable:
    """A row per class of the run; looked up by label without a loop, and without asking the device anything."""

    vectors: Tensor
    """[C, width], zero where the class has no row."""
    known: Tensor
    """bool [C]."""
    directions: Tensor = field(init=False)
    """The vectors at length one."""

    def __post_init__(self) -> None:
        # Once, as they stay the same for many steps; and not when first asked for, which may be an evaluation: what
        # is made in inference mode cannot be trained with.
        object.__setattr__(self, "directions", directions(self.vectors))

    @classmethod
    def from_prototypes(cls, received: PrototypeSet | None, *, classes: int, device: torch.device) -> Self | None:
        """The table of what was received; None while the server knows of no class."""
        if received is None or not len(received):
            return None
        class_ids = torch.from_numpy(received.class_ids).long()
        vectors = torch.zeros(classes, received.vectors.shape[1])
        vectors[class_ids] = torch.tensor(received.vectors)
        known = torch.zeros(classes, dtype=torch.bool)
        known[class_ids] = True
        return cls(vectors.to(device), known.to(device))
