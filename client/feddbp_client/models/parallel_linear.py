"""Linear layers of one input as a single matrix product, by the faster of torch's libraries for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_Product: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(x, weight, bias) -> x @ weight.T + bias."""


def parallel_linear(x: Tensor, layers: Sequence[nn.Linear]) -> Tensor:
    """The output of every layer for x, [n, layers, outputs]; layers have a bias and the same number of outputs."""
    weights: list[Tensor] = [layer.weight for layer in layers]
    biases: list[Tensor] = [layer.bias for layer in layers]
    product = onednn_product() if _trains_in_float32_on_cpu(x, weights[0]) else None
    out: Tensor
    if product is None:
        out = F.linear(x, torch.cat(weights), torch.cat(biases))
    else:
        out = _ParallelProduct.apply(product, x, *weights, *biases)  # type: ignore[no-untyped-call]
    return out.view(len(x), len(layers), -1)


def place_side_by_side(layers: Sequence[nn.Linear]) -> None:
    """Moves the parameters of the layers next to each other in memory, where they need no copy to be multiplied as one.

    Parameters that are moved again, such as to another device, are copied at every step.
    """
    for parameters in ([layer.weight for layer in layers], [layer.bias for layer in layers]):
        places = torch.cat([parameter.detach() for parameter in parameters]).chunk(len(parameters))
        for parameter, place in zip(parameters, places, strict=True):
            parameter.data = place


@cache
def onednn_product() -> _Product | None:
    """The product of oneDNN in float32, or None if this torch or processor does not have it.

    torch itself calls MKL, which uses vectors of half the width on processors of other makers than Intel: with one
    thread of a Zen 5, a batch of 32 through a layer of 512 x 512 takes 161 us, and 94 us by oneDNN. The operator is the
    one that torch's compiler inserts for linear layers.
    """
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkldnn.is_available():
        return None
    try:
        operator = torch.ops.mkldnn._linear_pointwise.default
    except AttributeError:
        return None

    def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        out: Tensor = operator(x, weight, bias, "none", [], "")
        return out

    return product


class _ParallelProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, product: _Product, x: Tensor, *weights_and_biases: Tensor) -> Tensor:
        layers = len(weights_and_biases) // 2
        weight, bias = _joined(weights_and_biases[:layers]), _joined(weights_and_biases[layers:])
        ctx.product, ctx.layers = product, layers
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        by_x = ctx.product(gradient, weight.T, None) if ctx.needs_input_grad[1] else None
        by_weight, by_bias = ctx.product(gradient.T, x.T, None), gradient.sum(dim=0)
        return None, by_x, *by_weight.chunk(ctx.layers), *by_bias.chunk(ctx.layers)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """The parts along their first dimension; a view if they lie side by side."""
    first = parts[0]
    if all(_lies_at(first, index, part) for index, part in enumerate(parts)):
        return first.as_strided((len(parts) * len(first), *first.shape[1:]), first.stride())
    return torch.cat(list(parts))


def _lies_at(first: Tensor, index: int, part: Tensor) -> bool:
    """Whether the part is as many parts after the first, in the same storage."""
    return (
        part.is_contiguous()
        and part.data_ptr() == first.data_ptr() + index * first.nbytes
        and part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
    )


def _trains_in_float32_on_cpu(x: Tensor, weight: Tensor) -> bool:
    return (
        x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
    )
