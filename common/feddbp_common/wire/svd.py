"""Weights as truncated singular value decompositions: FedKD's compression, the same on both sides.

A matrix `w` [a, b] travels as `w.u` [a, r], `w.sigma` [r] and `w.v` [r, b]. A stack of convolution kernels [o, i, k, l]
is decomposed kernel by kernel with one rank r for all of them, as `w.u` [o, i, k, r], `w.sigma` [o, i, r] and `w.v`
[o, i, r, l]. Everything else, and whatever its factors would only make larger, travels under its own name as it is: the
names tell the forms apart, whatever the shapes.
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
_Wide: TypeAlias = npt.NDArray[np.float64]

_U: Final = ".u"
_SIGMA: Final = ".sigma"
_V: Final = ".v"
_FACTORS: Final = (_U, _SIGMA, _V)

SIGMA_BOUND: Final = 1e3
"""Larger singular values do not travel."""
_UNIT_BOUND: Final = 1.01
"""Factors have columns, or rows, of length one; the rest is room for the rounding of half precision."""
_PRODUCT_BOUND: Final = SIGMA_BOUND * _UNIT_BOUND**2
"""No value of a product is beyond the largest singular value, since these columns are at right angles. Made-up factors
need not be: theirs could add up to hundreds of times as much, and to more than half precision can hold."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Factors:
    """u * sigma @ v over the last two axes; the axes before them count kernels."""

    u: _Wide
    sigma: _Wide
    v: _Wide

    @property
    def size(self) -> int:
        return self.u.size + self.sigma.size + self.v.size

    def product(self) -> _Wide:
        wide: _Wide = (self.u * self.sigma[..., None, :]) @ self.v
        return wide

    def transposed(self) -> _Factors:
        return _Factors(u=self.v.swapaxes(-1, -2), sigma=self.sigma, v=self.u.swapaxes(-1, -2))


def compress(tensors: Mapping[str, FloatArray], energy: float) -> dict[str, FloatArray]:
    """Every tensor in the smaller of its two forms; factors keep more than this share of its squared norm.

    Raises:
        PayloadError: a tensor has a value that is not finite, or the name of a factor.
    """
    compressed: dict[str, FloatArray] = {}
    for name, tensor in tensors.items():
        if _split(name)[1]:
            refuse(name, "is a name that only a factor may have")
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
    """The tensors under their own names and in their own shapes again; what no true factors can give is cut off.

    Raises:
        PayloadError: factors that do not belong together; `dense_shapes` tells it from the shapes alone.
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
    """What the shapes of compressed tensors become once these are decompressed, by name.

    Raises:
        PayloadError: a factor without the others, beside the tensor itself, or of a rank that is not theirs.
    """
    dense: dict[str, Shape] = {}
    for name, shape in shapes.items():
        whole, suffix = _split(name)
        if not suffix:
            dense[name] = shape
        elif whole in shapes:
            refuse(name, f"comes beside {whole} itself")
        elif whole not in dense:
            dense[whole] = _product_shape(whole, shapes)
    return dense


def compressed_rules(rules: tuple[TensorRule, ...]) -> tuple[TensorRule, ...]:
    """Rules that admit each tensor in either form. That one of them is there, `dense_shapes` can tell."""
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
    """The tensor a name belongs to, and which factor of it this is: none if it is the tensor."""
    for suffix in _FACTORS:
        if name.endswith(suffix):
            return name.removesuffix(suffix), suffix
    return name, ""


def _product_shape(name: str, shapes: Mapping[str, Shape]) -> Shape:
    for suffix in _FACTORS:
        if name + suffix not in shapes:
            refuse(name + suffix, "is missing beside its other factors")
    u, sigma, v = (shapes[name + suffix] for suffix in _FACTORS)
    if not (_decomposes(u) and len(v) == len(u) and sigma == (*u[:-2], u[-1]) == (*v[:-2], v[-2])):
        refuse(name, f"has factors of shapes {list(u)}, {list(sigma)} and {list(v)}, which make no product")
    return (*u[:-1], v[-1])


def _truncated(matrices: _Wide, energy: float) -> _Factors | None:
    """The factors of the smallest rank that keeps the energy, and of full rank if none does; None without a result.

    Singular vectors of the short side are the eigenvectors of its Gram matrix, which is many times faster than a full
    decomposition. What this loses is below 1e-8 of the largest singular value, less than float32 can tell.
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
    # Projected, not taken from the eigenvalues: the energy left out is then exactly that of the rows left out.
    rows = vectors.swapaxes(-1, -2) @ matrices
    sigma = np.sqrt(np.square(rows).sum(axis=-1))
    rank = _rank(sigma, energy)
    kept = sigma[..., :rank]
    v = np.divide(
        rows[..., :rank, :], kept[..., None], where=kept[..., None] > 0, out=np.zeros_like(rows[..., :rank, :])
    )
    return _Factors(u=vectors[..., :rank], sigma=kept, v=v)


def _rank(sigma: _Wide, energy: float) -> int:
    """One for all kernels, from their energy taken together."""
    energies = np.square(sigma).reshape(-1, sigma.shape[-1]).sum(axis=0)
    enough = np.flatnonzero(np.cumsum(energies) > energy * energies.sum())
    return int(enough[0]) + 1 if len(enough) else len(energies)
