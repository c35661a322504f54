"""Compresses weights by truncated singular value decomposition, as FedKD does on server and clients.

A matrix `w` [a, b] is sent as `w.u` [a, r], `w.sigma` [r] and `w.v` [r, b]. A stack of convolution kernels [o, i, k, l]
is decomposed kernel by kernel with one rank r for all of them, as `w.u` [o, i, k, r], `w.sigma` [o, i, r] and `w.v`
[o, i, r, l]. Tensors of other shapes, and those whose factors would be larger, are sent unchanged under their own name,
so that the names alone distinguish the two forms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from feddbp_common.errors import refuse
from feddbp_common.wire import Dim, TensorRule
from feddbp_common.wire.payload import AnyArray, FloatArray

Shape: TypeAlias = tuple[int, ...]
_Float64Array: TypeAlias = npt.NDArray[np.float64]

_U: Final = ".u"
_SIGMA: Final = ".sigma"
_V: Final = ".v"
_FACTORS: Final = (_U, _SIGMA, _V)

SIGMA_BOUND: Final = 1e3
"""A tensor with a larger singular value is sent unchanged."""
_UNIT_BOUND: Final = 1.01
"""Factors have columns, or rows, of length one; the margin is for the rounding of half precision."""
_PRODUCT_BOUND: Final = SIGMA_BOUND * _UNIT_BOUND**2
"""Values of a product do not exceed the largest singular value if the factors are orthogonal. Forged factors need not
be: their products could be hundreds of times larger and overflow half precision."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Factors:
    """The product is u * sigma @ v over the last two axes; the axes before them index kernels."""

    u: _Float64Array
    sigma: _Float64Array
    v: _Float64Array

    @property
    def size(self) -> int:
        return self.u.size + self.sigma.size + self.v.size

    def product(self) -> _Float64Array:
        product: _Float64Array = (self.u * self.sigma[..., None, :]) @ self.v
        return product

    def transposed(self) -> _Factors:
        return _Factors(u=self.v.swapaxes(-1, -2), sigma=self.sigma, v=self.u.swapaxes(-1, -2))


def compress(tensors: Mapping[str, FloatArray], energy: float) -> dict[str, FloatArray]:
    """Returns every tensor in the smaller of its two forms; factors keep more than `energy` of its squared norm.

    Raises:
        PayloadError: a tensor has a value that is not finite, or a name that is reserved for factors.
    """
    compressed: dict[str, FloatArray] = {}
    for name, tensor in tensors.items():
        if _split(name)[1]:
            refuse(name, "is a name that is reserved for factors")
        if not np.isfinite(tensor).all():
            refuse(name, "has a value that is not finite")
        factors = _truncated(tensor.astype(np.float64), energy) if _decomposes(tensor.shape) else None
        if factors is None or factors.size >= tensor.size or factors.sigma.max() > SIGMA_BOUND:
            compressed[name] = tensor
        else:
            compressed[name + _U] = factors.u.astype(np.float32)
            compressed[name + _SIGMA] = factors.sigma.astype(np.float32)
            compressed[name + _V] = factors.v.astype(np.float32)
    return compressed


def decompress(tensors: Mapping[str, AnyArray]) -> dict[str, FloatArray]:
    """Restores the tensors; values beyond what orthogonal factors can give are clipped.

    Raises:
        PayloadError: factors do not belong together; `dense_shapes` detects this from the shapes alone.
    """
    whole: dict[str, FloatArray] = {}
    for name in dense_shapes({name: tensor.shape for name, tensor in tensors.items()}):
        if name in tensors:
            whole[name] = tensors[name]
        else:
            u, sigma, v = (tensors[name + suffix].astype(np.float64) for suffix in _FACTORS)
            product = _Factors(u=u, sigma=sigma, v=v).product()
            whole[name] = np.clip(product, -_PRODUCT_BOUND, _PRODUCT_BOUND).astype(np.float32)
    return whole


def dense_shapes(shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Returns the shapes that compressed tensors have after decompression, by name.

    Raises:
        PayloadError: a factor is sent without the others, together with the tensor itself, or with another rank.
    """
    dense: dict[str, Shape] = {}
    for name, shape in shapes.items():
        whole, suffix = _split(name)
        if not suffix:
            dense[name] = shape
        elif whole in shapes:
            refuse(name, f"is sent together with {whole} itself")
        elif whole not in dense:
            dense[whole] = _product_shape(whole, shapes)
    return dense


def compressed_rules(rules: tuple[TensorRule, ...]) -> tuple[TensorRule, ...]:
    """Returns rules that allow each tensor in either form; `dense_shapes` finds out whether one of them is present."""
    admitted: list[TensorRule] = []
    for rule in rules:
        admitted.append(replace(rule, required=False))
        if _decomposes(rule.shape):
            admitted += _factor_rules(rule)
    return tuple(admitted)


def _factor_rules(rule: TensorRule) -> list[TensorRule]:
    *kernels, rows, columns = rule.shape
    rank = Dim(1, min(rows.high, columns.high))
    u, sigma, v = (
        replace(rule, name=rule.name + suffix, shape=tuple(shape), required=False, low=low, high=high)
        for suffix, shape, low, high in (
            (_U, (*kernels, rows, rank), -_UNIT_BOUND, _UNIT_BOUND),
            (_SIGMA, (*kernels, rank), 0.0, SIGMA_BOUND),
            (_V, (*kernels, rank, columns), -_UNIT_BOUND, _UNIT_BOUND),
        )
    )
    return [u, sigma, v]


def _decomposes(shape: tuple[object, ...]) -> bool:
    return len(shape) in (2, 4)


def _split(name: str) -> tuple[str, str]:
    """Splits a name into that of the tensor and the suffix of the factor, which is empty for the tensor itself."""
    for suffix in _FACTORS:
        if name.endswith(suffix):
            return name.removesuffix(suffix), suffix
    return name, ""


def _product_shape(name: str, shapes: Mapping[str, Shape]) -> Shape:
    for suffix in _FACTORS:
        if name + suffix not in shapes:
            refuse(name + suffix, "is missing, but other factors are present")
    u, sigma, v = (shapes[name + suffix] for suffix in _FACTORS)
    if not (_decomposes(u) and len(v) == len(u) and sigma == (*u[:-2], u[-1]) == (*v[:-2], v[-2])):
        refuse(name, f"has factors of shapes {list(u)}, {list(sigma)} and {list(v)}, which cannot be multiplied")
    return (*u[:-1], v[-1])


def _truncated(matrices: _Float64Array, energy: float) -> _Factors | None:
    """Returns the factors of the smallest rank that keeps the energy, or else of full rank; None on failure.

    Singular vectors of the short side are the eigenvectors of its Gram matrix, which is many times faster than a full
    decomposition. The error is below 1e-8 of the largest singular value, less than the resolution of float32.
    """
    if matrices.shape[-2] > matrices.shape[-1]:
        factors = _truncated(matrices.swapaxes(-1, -2), energy)
        return None if factors is None else factors.transposed()
    if not prod(matrices.shape):
        return None
    try:
        _, vectors = np.linalg.eigh(matrices @ matrices.swapaxes(-1, -2))
    except np.linalg.LinAlgError:
        return None
    vectors = vectors[..., ::-1]  # the largest first
    # from the projection, not the eigenvalues, so that the energy lost is exactly that of the rows left out
    rows = vectors.swapaxes(-1, -2) @ matrices
    sigma = np.sqrt(np.square(rows).sum(axis=-1))
    rank = _rank(sigma, energy)
    kept = sigma[..., :rank]
    v = np.divide(
        rows[..., :rank, :], kept[..., None], where=kept[..., None] > 0, out=np.zeros_like(rows[..., :rank, :])
    )
    return _Factors(u=vectors[..., :rank], sigma=kept, v=v)


def _rank(sigma: _Float64Array, energy: float) -> int:
    """Returns one rank for all kernels, from the sum of their energies."""
    energies = np.square(sigma).reshape(-1, sigma.shape[-1]).sum(axis=0)
    enough = np.flatnonzero(np.cumsum(energies) > energy * energies.sum())
    return int(enough[0]) + 1 if len(enough) else len(energies)
