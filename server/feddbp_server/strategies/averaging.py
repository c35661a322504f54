"""Averages of prototypes over clients, the same bits whatever the order of arrival."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from feddbp_common.wire import PrototypeSet


class PrototypeMean:
    """A running mean per class. Sums are float64 and rounded once, in the order in which sets are added."""

    def __init__(self, classes: int, width: int) -> None:
        self._sums = np.zeros((classes, width), dtype=np.float64)
        self._weights = np.zeros(classes, dtype=np.float64)

    def add(self, prototypes: PrototypeSet) -> None:
        rows = _rows(prototypes)
        self._sums[rows] += prototypes.vectors
        self._weights[rows] += 1.0

    def result(self, previous: PrototypeSet | None) -> PrototypeSet:
        """The means; a class nobody sent keeps its previous prototype."""
        sent = self._weights > 0
        known = sent.copy()
        vectors = np.zeros(self._sums.shape, dtype=np.float32)
        if previous is not None:
            known[previous.class_ids] = True
            vectors[previous.class_ids] = previous.vectors
        vectors[sent] = (self._sums[sent] / self._weights[sent, None]).astype(np.float32)
        class_ids = np.flatnonzero(known).astype(np.int32)
        return PrototypeSet(class_ids=class_ids, vectors=vectors[class_ids])


def mean_prototypes(
    sets: Iterable[PrototypeSet], *, classes: int, width: int, previous: PrototypeSet | None
) -> PrototypeSet:
    mean = PrototypeMean(classes, width)
    for prototypes in sets:
        mean.add(prototypes)
    return mean.result(previous)


def _rows(prototypes: PrototypeSet) -> slice | np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Where the rows go; a slice where they are contiguous, since numpy then adds in place."""
    ids = prototypes.class_ids
    if len(ids) and ids[-1] - ids[0] + 1 == len(ids):
        return slice(int(ids[0]), int(ids[-1]) + 1)
    return ids
