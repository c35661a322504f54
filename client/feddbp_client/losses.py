"""Losses and distances between features and class prototypes: tensors in, tensors out.

Prototypes are a dense [C, d] with a mask `known` [C] of the classes that have one. Shapes then do not depend on which
classes are known, so a training step has no gather of varying size and, on a GPU, no synchronisation with the host.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from feddbp_common.methods.fedproto import AlignmentDistance

Reduction = Literal["mean", "sum"]
ContrastiveForm = Literal["log", "ratio"]
HardNegatives = Literal["reweight", "printed", "boundary", "none"]

_SMALLEST_NORM: Final = 1e-12
"""A shorter vector has no usable direction and counts as zero."""

_SMALLEST_UNIT_SQUARE: Final = 1e-14
"""Unit vectors made from float32 are indistinguishable below a distance of 1e-7."""

_SMALLEST_SQUARE: Final = 1e-12
"""A feature whose squared distance to its prototype is smaller counts as equal to it."""

_NO_TARGET: Final = -100
"""The label that cross-entropy ignores."""


def directions(vectors: Tensor) -> Tensor:
    """Rows scaled to length one, in float64 where the device has it; a zero row stays zero."""
    wide = vectors.double() if _has_float64(vectors) else vectors.float()
    norms = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
    # where() and not the clamp alone: the clamp passes a gradient of 1/1e-12 to a zero vector
    return torch.where(norms > _SMALLEST_NORM, wide / norms.clamp_min(_SMALLEST_NORM), 0.0)


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """|a_i - b_j|^2 as [n, m], in float64 where the device has it."""
    if not _has_float64(a):
        return _squares_of_differences(a, b)
    # One matrix product is many times faster than m differences per row, but cancels digits when a distance is small.
    # For float32 inputs the digits that are left in float64 are enough.
    a, b = a.double(), b.double()
    squares = torch.linalg.vecdot(a, a).unsqueeze(1) + torch.linalg.vecdot(b, b)
    return torch.addmm(squares, a, b.T, alpha=-2).clamp_min(0)


def normalized_distances(z: Tensor, prototype_directions: Tensor) -> Tensor:
    """d_ic, the distance between the direction of z_i and that of prototype c, in [0, 2].

    Its gradient is zero where it is undefined: at distance zero and for a zero vector. Prototypes stay the same for
    many steps, so the caller computes their directions once.
    """
    squares = squared_distances(directions(z), prototype_directions)
    distances = _masked_root(squares, squares > _SMALLEST_UNIT_SQUARE)
    # features may be in half precision, which is too coarse for a distance that is divided by tau
    return distances.to(torch.promote_types(z.dtype, torch.float32))


def prototype_alignment(z: Tensor, prototypes: Tensor, labels: Tensor, known: Tensor, reduction: Reduction) -> Tensor:
    """L_s: squared distance to the prototype of the sample's class, averaged over the batch.

    The reduction is over channels. A sample whose class has no prototype adds zero and still counts in the average.
    """
    offsets = (z - prototypes[labels]) * known[labels].unsqueeze(1)
    samples, channels = z.shape
    return offsets.square().sum() / (samples * channels if reduction == "mean" else samples)


def alignment(z: Tensor, prototypes: Tensor, labels: Tensor, known: Tensor, distance: AlignmentDistance) -> Tensor:
    """Distance of every feature to the prototype of its class, averaged over the batch."""
    if distance != "euclidean":
        return prototype_alignment(z, prototypes, labels, known, "mean" if distance == "mse" else "sum")
    squares = (z - prototypes[labels]).square().sum(dim=1)
    return _masked_root(squares, known[labels] & (squares > _SMALLEST_SQUARE)).sum() / len(z)


def contrastive_boundary(distances: Tensor, labels: Tensor, known: Tensor) -> Tensor:
    """m, halfway between the mean positive and the mean negative distance of the batch; detached from the gradient.

    Samples whose class has no prototype are left out, so that they have no influence on the loss of the others.
    """
    distances = distances.detach()
    has_positive, is_class = known[labels].to(distances.dtype), known.to(distances.dtype)
    positive = distances.gather(1, labels.unsqueeze(1)).squeeze(1)
    negatives = is_class.sum() - 1
    mean_negative = (torch.mv(distances, is_class) - positive) / negatives.clamp_min(1)
    return torch.dot(positive + mean_negative, has_positive) / (2 * has_positive.sum()).clamp_min(1)


def contrastive(
    z: Tensor,
    prototype_directions: Tensor,
    labels: Tensor,
    known: Tensor,
    *,
    tau: float,
    form: ContrastiveForm,
    hard_negatives: HardNegatives,
    boundary: Tensor | None = None,
) -> Tensor:
    """L_d, averaged over the batch; the boundary is the batch's unless one is given.

    A sample whose class has no prototype adds zero and still counts in the average.
    """
    # half precision is too coarse for a distance that is divided by tau
    precision = torch.promote_types(z.dtype, torch.float32)
    with _without_autocast(z.device.type):
        distances: Tensor = _BatchDistances.apply(  # type: ignore[no-untyped-call]
            z.to(precision), prototype_directions.to(precision), labels
        )
        if boundary is None and hard_negatives != "none":
            boundary = contrastive_boundary(distances, labels, known)
    logits = _denominator_logits(distances, labels, known, tau, hard_negatives, boundary)
    # With every addend of the denominator as a logit, -log(N/(S+M)) is a cross-entropy: the positive's logit is one of
    # them, and no exponential is taken of a positive number.
    targets = labels.where(known[labels], _NO_TARGET)
    if form == "log":
        return F.cross_entropy(logits, targets, ignore_index=_NO_TARGET, reduction="sum") / len(z)
    losses = F.cross_entropy(logits, targets, ignore_index=_NO_TARGET, reduction="none")
    return -(torch.exp(-losses) * known[labels]).sum() / len(z)


def angular_contrast(
    z: Tensor, prototype_directions: Tensor, prototype_classes: Tensor, labels: Tensor, *, tau: float
) -> Tensor:
    """-log of the share of the sample's class in the sum of exp(cosine / tau) over all prototypes.

    Prototypes are rows of length one, any number of them per class. With one per class this is the cross-entropy of the
    cosines.
    """
    with torch.autocast(z.device.type, enabled=False):  # half precision is too coarse for what is divided by tau
        cosines = torch.mm(directions(z), prototype_directions.T) / tau
    own = prototype_classes == labels.unsqueeze(1)
    # finite, so that a row without a prototype of its class gives no NaN
    positives = cosines.masked_fill(~own, torch.finfo(cosines.dtype).min).logsumexp(dim=1)
    losses = (cosines.logsumexp(dim=1) - positives).where(own.any(dim=1), 0.0)
    return (losses.sum() / len(z)).to(torch.promote_types(z.dtype, torch.float32))


def _denominator_logits(
    distances: Tensor,
    labels: Tensor,
    known: Tensor,
    tau: float,
    hard_negatives: HardNegatives,
    boundary: Tensor | None,
) -> Tensor:
    """Logarithms of the addends of S_i + M_i; column c of the first C is that of exp(-d_ic / tau).

    Rows of samples whose class has no prototype are arbitrary: no loss is taken of them.
    """
    # finite, so that a row without a known class gives no NaN
    absent = torch.finfo(distances.dtype).min
    own = labels.unsqueeze(1)
    if hard_negatives == "reweight" and boundary is not None:
        # a hard negative's addend counts twice
        twice = (distances < boundary).to(distances.dtype).mul_(math.log(2)).scatter_(1, own, 0.0)
        return torch.sub(twice.masked_fill_(~known, absent), distances, alpha=1 / tau)
    logits = (distances / -tau).masked_fill(~known, absent)
    if hard_negatives == "none" or boundary is None:
        return logits
    depth = F.relu(boundary - distances) / tau
    penalty = depth if hard_negatives == "boundary" else -depth
    negative = known.expand_as(distances).scatter(1, own, False)
    return torch.cat([logits, penalty.masked_fill(~negative, absent)], dim=1)


class _BatchDistances(torch.autograd.Function):
    """`normalized_distances` in the features' own precision, with its derivative in a few operations.

    A product of unit vectors cancels the digits of a small distance. The distance to the prototype of a sample's own
    class, the one that training makes small, is therefore taken from the difference.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, prototype_directions: Tensor, labels: Tensor) -> Tensor:
        own = labels.unsqueeze(1)
        lengths = torch.linalg.vector_norm(z, dim=1, keepdim=True)
        # infinite for a zero vector: its direction is then zero, and so is its gradient
        lengths.masked_fill_(lengths <= _SMALLEST_NORM, torch.inf)
        unit = z / lengths
        squares = torch.addmm(
            _squared_norms(unit) + _squared_norms(prototype_directions).T, unit, prototype_directions.T, alpha=-2
        )
        offsets = unit - prototype_directions[labels]
        squares.scatter_(1, own, _squared_norms(offsets))
        distances = squares.masked_fill_(squares <= _SMALLEST_UNIT_SQUARE, 0.0).sqrt_()
        ctx.save_for_backward(unit, lengths, offsets, prototype_directions, own, distances)
        return distances

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        with _without_autocast(gradient.device.type):
            return _BatchDistances._derivatives(ctx, gradient)

    @staticmethod
    def _derivatives(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        unit, lengths, offsets, prototype_directions, own, distances = ctx.saved_tensors
        # d_ic changes with the direction u_i by (u_i - p_c) / d_ic; multiples of u_i vanish in the next step
        slopes = (gradient / distances).masked_fill_(distances == 0, 0.0)
        others = slopes.scatter(1, own, 0.0)
        by_unit = torch.mm(others, prototype_directions).neg_().addcmul_(offsets, slopes.gather(1, own))
        # u_i changes with z_i by its part at right angles to u_i, over the length of z_i
        by_z = by_unit.addcmul_(unit, torch.linalg.vecdot(by_unit, unit).unsqueeze(1), value=-1).div_(lengths)
        by_prototypes = None
        if ctx.needs_input_grad[1]:
            by_prototypes = slopes.sum(dim=0).unsqueeze(1) * prototype_directions - torch.mm(slopes.T, unit)
        return by_z, by_prototypes, None


def _squared_norms(rows: Tensor) -> Tensor:
    """[n, 1]."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return norms.square_()


def _without_autocast(device_type: str) -> AbstractContextManager[Any]:
    # entering autocast takes longer than an operation of a small batch
    enabled = torch.is_autocast_enabled(device_type)
    return torch.autocast(device_type, enabled=False) if enabled else nullcontext()


def _masked_root(squares: Tensor, mask: Tensor) -> Tensor:
    """Square roots where the mask is set, else zero without a gradient."""
    # masked before the root as well: its infinite slope at zero, times the mask's zero, would be NaN
    return torch.where(mask, squares, 1.0).sqrt() * mask


def _squares_of_differences(a: Tensor, b: Tensor) -> Tensor:
    """Exact in float32, as nothing cancels, but slow; needs memory for n * m * d numbers."""
    return (a.unsqueeze(1) - b).float().square().sum(dim=2)


def _has_float64(tensor: Tensor) -> bool:
    """Apple's GPUs have none."""
    return tensor.device.type != "mps"
