"""Class statistics that clients upload: means over the whole training split, in one pass of large batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feddbp_common.wire.payload import FloatArray, IntArray


class Images(Protocol):
    """Network input by position: a tensor, or a split that is larger than memory."""

    def __len__(self) -> int: ...

    def __getitem__(self, positions: slice, /) -> Tensor: ...


PerSample = Callable[[Tensor, Tensor], Tensor]
"""(images, labels) of a batch -> one vector per sample, [b, width]."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassMeans:
    """Means by class; rows in ascending order of class id, classes without samples left out."""

    class_ids: IntArray
    counts: IntArray
    means: FloatArray


@dataclass(frozen=True, kw_only=True, eq=False)
class PrototypeStatistics:
    """Prototypes and Fisher scores by class; rows in ascending order of class id."""

    class_ids: IntArray
    counts: IntArray
    prototypes: FloatArray
    fisher: FloatArray


@contextmanager
def evaluation(module: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; restores the mode afterwards."""
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train(was_training)


@torch.no_grad()
def class_means(
    per_sample: PerSample,
    images: Images,
    labels: Tensor,
    *,
    width: int,
    batch_size: int,
    device: torch.device,
) -> ClassMeans:
    """The mean of per_sample over each class that has samples."""
    class_ids, row_of, counts = torch.unique(labels.cpu(), return_inverse=True, return_counts=True)
    # Summed on the host: it adds samples in a fixed order, which a GPU does not guarantee, and has float64, which
    # Apple's GPUs lack.
    sums = torch.zeros(len(class_ids), width, dtype=torch.float64)
    for start in range(0, len(images), batch_size):
        batch = slice(start, start + batch_size)
        vectors = per_sample(images[batch].to(device), labels[batch].to(device))
        sums.index_add_(0, row_of[batch], vectors.cpu().double())
    means = sums / counts.unsqueeze(1)
    return ClassMeans(
        class_ids=class_ids.numpy().astype(np.int32),
        counts=counts.numpy().astype(np.int32),
        means=means.numpy().astype(np.float32),
    )


def prototypes_and_fisher(
    shared_feature: Callable[[Tensor], Tensor],
    head: nn.Module,
    images: Images,
    labels: Tensor,
    *,
    width: int,
    batch_size: int,
    device: torch.device,
) -> PrototypeStatistics:
    """Class means of the shared feature and of its squared log-likelihood gradient, the diagonal of Fisher's matrix.

    The networks behind shared_feature and head must be in eval mode.
    """

    def feature_and_square(batch: Tensor, batch_labels: Tensor) -> Tensor:
        z = shared_feature(batch)
        return torch.cat([z, log_likelihood_gradients(head, z, batch_labels).square()], dim=1)

    found = class_means(feature_and_square, images, labels, width=2 * width, batch_size=batch_size, device=device)
    prototypes, fisher = np.split(found.means, 2, axis=1)
    return PrototypeStatistics(
        class_ids=found.class_ids,
        counts=found.counts,
        prototypes=np.ascontiguousarray(prototypes),
        fisher=np.ascontiguousarray(fisher),
    )


def log_likelihood_gradients(head: nn.Module, z: Tensor, labels: Tensor) -> Tensor:
    """Row i is d log p(y_i | z_i) / d z_i, [b, width]; the head must treat rows independently."""
    # half precision is for the backbone; the head is small, and 1 - p_y needs more digits
    with torch.autocast(z.device.type, enabled=False):
        z = z.to(torch.promote_types(z.dtype, torch.float32))
        # the exact type: a subclass may compute something different
        if type(head) is nn.Linear:
            return _linear_gradients(head, z, labels)
        return _autograd_gradients(head, z, labels)


def _linear_gradients(head: nn.Linear, z: Tensor, labels: Tensor) -> Tensor:
    """(one_hot(y) - softmax(o)) @ W, which is W[y] - softmax(o) @ W.

    A well-fitted sample has p_y close to one, where 1 - p_y would be rounding noise and rank the channels by it. It is
    therefore summed up from the other classes.
    """
    own = labels.unsqueeze(1)
    others = head(z).softmax(dim=1).scatter(1, own, 0.0)
    residual = (-others).scatter(1, own, others.sum(dim=1, keepdim=True))
    return torch.mm(residual, head.weight)


def _autograd_gradients(head: nn.Module, z: Tensor, labels: Tensor) -> Tensor:
    """One backward pass through the head alone: rows are independent, so the gradient of a sum is every row's own."""
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        logits = head(z)
        own = labels.unsqueeze(1)
        rest = logits.scatter(1, own, -torch.inf).logsumexp(dim=1)
        # log p_y as a function of the margin keeps its slope, 1 - p_y, exact where p_y rounds to one
        total = F.logsigmoid(logits.gather(1, own).squeeze(1) - rest).sum()
        (gradients,) = torch.autograd.grad(total, z)
    return gradients
