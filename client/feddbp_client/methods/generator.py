"""FedGen's generator on a client: frozen, in eval mode, and received in every round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from feddbp_common.errors import refuse
from feddbp_common.methods.fedgen import (
    GENERATOR,
    HIDDEN_BIAS,
    HIDDEN_WEIGHT,
    LABEL_COUNTS,
    NORM_BIAS,
    NORM_EPSILON,
    NORM_MEAN,
    NORM_VARIANCE,
    NORM_WEIGHT,
    OUTPUT_BIAS,
    OUTPUT_WEIGHT,
)
from feddbp_common.wire import Payload


@dataclass(frozen=True, eq=False)
class FrozenGenerator:
    """Generates features of given labels. Not a module: its tensors are neither trained nor checkpointed."""

    tensors: Mapping[str, Tensor]
    label_shares: Tensor
    """float64 [C] on the CPU, the share of each class among all training samples."""
    known: Tensor
    """bool [C], the classes that some client has, on which the generator was trained."""

    @classmethod
    def from_payload(cls, payload: Payload, *, device: torch.device) -> Self | None:
        """The received generator; None while the server has not trained one."""
        if LABEL_COUNTS not in payload.tensors:
            return None
        for name in GENERATOR:
            if name not in payload.tensors:
                refuse(name, "is missing, while other tensors of the generator are present")
        counts = torch.tensor(payload.tensors[LABEL_COUNTS]).double()
        if not counts.sum():
            refuse(LABEL_COUNTS, "has no class with samples")
        return cls(
            tensors={name: torch.tensor(payload.tensors[name], device=device) for name in GENERATOR},
            label_shares=counts / counts.sum(),
            known=(counts > 0).to(device),
        )

    def draw_labels(self, count: int) -> Tensor:
        """Labels with the frequencies they have among all clients."""
        # drawn on the CPU, as is the noise, so that the numbers are the same on any device
        labels = torch.multinomial(self.label_shares, count, replacement=True)
        return labels.to(self.known.device)

    def features(self, labels: Tensor) -> Tensor:
        """One feature per label, each from its own noise."""
        parts = self.tensors
        noise_dim = parts[HIDDEN_WEIGHT].shape[1] - len(self.known)
        noise = torch.rand(len(labels), noise_dim).to(labels.device)
        inputs = torch.cat([noise, F.one_hot(labels, len(self.known))], dim=1)
        hidden = F.batch_norm(
            F.linear(inputs, parts[HIDDEN_WEIGHT], parts[HIDDEN_BIAS]),
            parts[NORM_MEAN],
            parts[NORM_VARIANCE],
            parts[NORM_WEIGHT],
            parts[NORM_BIAS],
            training=False,
            eps=NORM_EPSILON,
        )
        return F.linear(hidden.relu(), parts[OUTPUT_WEIGHT], parts[OUTPUT_BIAS])
