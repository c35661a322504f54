"""Averages of named tensors over clients; the result does not depend on the order of arrival."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from feddbp_common.errors import refuse
from feddbp_common.wire.payload import AnyArray, FloatArray


class TensorMean:
    """A weighted mean per name. Sums are float64 and rounded once, in the order in which tensors are added."""

    def __init__(self) -> None:
        self._sums: dict[str, npt.NDArray[np.float64]] = {}
        self._weight = 0.0

    def add(self, tensors: Mapping[str, AnyArray], *, weight: float = 1.0, of: str = "an upload") -> None:
        """Adds tensors; raises PayloadError, which names `of`, unless names and shapes are those of earlier ones."""
        if self._sums:
            check_shapes(tensors, self._sums, of)
        for name, tensor in tensors.items():
            weighted = weight * tensor.astype(np.float64)
            if name in self._sums:
                self._sums[name] += weighted
            else:
                self._sums[name] = weighted
        self._weight += weight

    def result(self) -> dict[str, FloatArray]:
        """The means; empty if nothing was added."""
        return {name: (total / self._weight).astype(np.float32) for name, total in self._sums.items()}


def check_shapes(tensors: Mapping[str, AnyArray], expected: Mapping[str, AnyArray], of: str) -> None:
    """Without this check, numpy would silently broadcast one channel over three."""
    for name in sorted(expected.keys() | tensors.keys()):
        shapes = [list(group[name].shape) if name in group else None for group in (tensors, expected)]
        if shapes[0] != shapes[1]:
            refuse(name, f"has shape {shapes[0]} in {of}, but {shapes[1]} in those before")
