"""Adaptive average pooling that is deterministic on a GPU where that is asked for."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def average_pool(x: Tensor, *bins: int) -> Tensor:
    """Averages the last dimensions of x into so many bins each: one dimension, or two."""
    # most maps have this size already; pooling them one to one would cost noticeable time
    if x.shape[-len(bins) :] == bins:
        return x
    if x.device.type == "cuda" and torch.are_deterministic_algorithms_enabled():
        return pool_by_products(x, *bins)
    return F.adaptive_avg_pool1d(x, bins[0]) if len(bins) == 1 else F.adaptive_avg_pool2d(x, (bins[0], bins[1]))


def pool_by_products(x: Tensor, *bins: int) -> Tensor:
    """The same by matrix products: on a GPU the backward pass of torch's pooling adds in a random order."""
    for dimension, count in zip(range(-len(bins), 0), bins, strict=True):
        pooled = torch.matmul(x.transpose(dimension, -1), _averages(x.shape[dimension], count, x))
        x = pooled.transpose(dimension, -1)
    return x


def _averages(length: int, bins: int, like: Tensor) -> Tensor:
    """[length, bins]; column j has one over the size of bin j at its positions. Neighbouring bins may overlap."""
    number = torch.arange(bins, device=like.device)
    first = number * length // bins
    end = -(-(number + 1) * length // bins)
    position = torch.arange(length, device=like.device).unsqueeze(1)
    return ((position >= first) & (position < end)).to(like.dtype) / (end - first)
