"""Loss terms of the comparison methods that hold features to what the server knows of their classes.

In all of them a sample whose class the server does not know adds nothing and still counts in the batch's average.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from feddbp_client.losses import directions, prototype_alignment
from feddbp_common.methods.fedproto import AlignmentDistance

_SMALLEST_SQUARE: Final = 1e-12
"""A feature closer to its prototype than the root of this counts as being on it."""


def alignment(z: Tensor, prototypes: Tensor, labels: Tensor, known: Tensor, distance: AlignmentDistance) -> Tensor:
    """Distance of every feature to the prototype of its class, averaged over the batch."""
    if distance != "euclidean":
        return prototype_alignment(z, prototypes, labels, known, "mean" if distance == "mse" else "sum")
    squares = (z - prototypes[labels]).square().sum(dim=1)
    apart = known[labels] & (squares > _SMALLEST_SQUARE)
    # the root is never taken of what is masked out: an infinite slope times zero would be NaN
    return (torch.where(apart, squares, 1.0).sqrt() * apart).sum() / len(z)


def angular_contrast(
    z: Tensor, prototype_directions: Tensor, prototype_classes: Tensor, labels: Tensor, *, tau: float
) -> Tensor:
    """-log of the share that prototypes of the own class have in the sum of exp(cosine / tau) over all prototypes.

    Prototypes come as rows of length one, any number of them per class. With one per class it is the cross-entropy of
    the cosines.
    """
    with torch.autocast(z.device.type, enabled=False):  # half precision is too coarse for what is divided by tau
        cosines = torch.mm(directions(z), prototype_directions.T) / tau
    own = prototype_classes == labels.unsqueeze(1)
    # finite, so that a row without any prototype of its own is harmless too
    positives = cosines.masked_fill(~own, torch.finfo(cosines.dtype).min).logsumexp(dim=1)
    losses = (cosines.logsumexp(dim=1) - positives).where(own.any(dim=1), 0.0)
    return (losses.sum() / len(z)).to(torch.promote_types(z.dtype, torch.float32))
