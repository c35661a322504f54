"""Averages that bound the influence of a few uploads: median and trimmed mean, value by value.

Every client that has the value has equal weight, so that neither declared samples nor norms decide. Values are sorted
before they are added in float64: the result does not depend on the order of arrival.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from feddbp_common.config.exchange import AggregationConfig
from feddbp_common.wire import PrototypeSet
from feddbp_common.wire.payload import AnyArray, FloatArray
from feddbp_server.strategies.averaging import PrototypeMean, merged_with
from feddbp_server.strategies.base import RunFacts
from feddbp_server.strategies.tensor_mean import TensorMean, check_shapes

_BLOCK_VALUES: Final = 1 << 22
"""Values that are sorted at a time; bounds memory beyond the uploads themselves."""


def prototype_average(facts: RunFacts, *, width: int, by_samples: bool = False) -> PrototypeMean | RobustPrototypes:
    """The average of prototypes under the run's rule."""
    if _is_sorted(facts.aggregation):
        return RobustPrototypes(facts.aggregation, facts.shape.classes, width)
    return PrototypeMean(facts.shape.classes, width, by_samples=by_samples)


def tensor_average(facts: RunFacts) -> TensorMean | RobustTensors:
    """The average of named tensors under the run's rule."""
    return RobustTensors(facts.aggregation) if _is_sorted(facts.aggregation) else TensorMean()


class RobustPrototypes:
    """Keeps every set, and combines class by class."""

    def __init__(self, config: AggregationConfig, classes: int, width: int) -> None:
        self._config = config
        self._rows: list[list[FloatArray]] = [[] for _ in range(classes)]
        self._width = width

    def add(self, prototypes: PrototypeSet) -> None:
        for class_id, row in zip(prototypes.class_ids.tolist(), prototypes.vectors, strict=True):
            self._rows[class_id].append(row)

    def result(self, previous: PrototypeSet | None) -> PrototypeSet:
        """The combined rows; a class without uploads keeps its previous prototype."""
        sent = np.array([bool(rows) for rows in self._rows])
        vectors = np.zeros((len(self._rows), self._width), dtype=np.float32)
        for class_id, rows in enumerate(self._rows):
            if rows:
                vectors[class_id] = combined(np.stack(rows), self._config)
        return merged_with(previous, sent, vectors)


class RobustTensors:
    """Keeps the tensors of every client, and combines them in blocks of columns."""

    def __init__(self, config: AggregationConfig) -> None:
        self._config = config
        self._uploads: list[Mapping[str, AnyArray]] = []

    def add(self, tensors: Mapping[str, AnyArray], *, weight: float = 1.0, of: str = "an upload") -> None:
        """Adds tensors; clients have equal weight, whatever `weight` is."""
        if self._uploads:
            check_shapes(tensors, self._uploads[0], of)
        self._uploads.append(tensors)

    def result(self) -> dict[str, FloatArray]:
        """The combined tensors; empty if nothing was added."""
        return {name: self._combined(name) for name in self._uploads[0]} if self._uploads else {}

    def _combined(self, name: str) -> FloatArray:
        flat = [upload[name].reshape(-1) for upload in self._uploads]
        result = np.empty(flat[0].size, dtype=np.float32)
        step = max(1, _BLOCK_VALUES // len(flat))
        for start in range(0, result.size, step):
            block = slice(start, start + step)
            result[block] = combined(np.stack([values[block] for values in flat]), self._config)
        return result.reshape(self._uploads[0][name].shape)


def combined(rows: AnyArray, config: AggregationConfig) -> FloatArray:
    """The mean over clients, which are the rows, without the smallest and the largest values of each column."""
    count = len(rows)
    most = (count - 1) // 2  # which leaves the median: the middle value, or the mean of the two in the middle
    cut = most if config.rule == "median" else min(math.ceil(config.trim * count - 1e-9), most)
    kept = np.sort(rows, axis=0)[cut : count - cut].astype(np.float64)
    mean: FloatArray = (kept.sum(axis=0) / len(kept)).astype(np.float32)
    return mean


def _is_sorted(config: AggregationConfig) -> bool:
    return config.rule in ("median", "trimmed_mean")
