"""Averages of prototypes over clients; the result does not depend on the order of arrival."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from feddbp_common.wire import Payload, PrototypeSet
from feddbp_common.wire.payload import FloatArray
from feddbp_server.strategies.base import Upload


class PrototypeMean:
    """A running mean per class. Sums are float64 and rounded once, in the order in which sets are added.

    Clients have equal weight, or each class of a client is weighted by its number of samples.
    """

    def __init__(self, classes: int, width: int, *, by_samples: bool = False) -> None:
        self._sums = np.zeros((classes, width), dtype=np.float64)
        self._weights = np.zeros(classes, dtype=np.float64)
        self._by_samples = by_samples

    def add(self, prototypes: PrototypeSet) -> None:
        rows = _rows(prototypes)
        if self._by_samples and len(prototypes):
            assert prototypes.counts is not None  # required by the upload rules
            self._sums[rows] += prototypes.vectors * prototypes.counts[:, None].astype(np.float64)
            self._weights[rows] += prototypes.counts
        else:
            self._sums[rows] += prototypes.vectors
            self._weights[rows] += 1.0

    def result(self, previous: PrototypeSet | None) -> PrototypeSet:
        """The means; a class without uploads keeps its previous prototype."""
        sent = self._weights > 0
        vectors = np.zeros(self._sums.shape, dtype=np.float32)
        vectors[sent] = (self._sums[sent] / self._weights[sent, None]).astype(np.float32)
        return merged_with(previous, sent, vectors)


def merged_with(previous: PrototypeSet | None, sent: npt.NDArray[np.bool_], vectors: FloatArray) -> PrototypeSet:
    """Rows of classes that were sent, and the previous ones of other classes; both arrays have a row per class."""
    present = sent.copy()
    if previous is not None:
        present[previous.class_ids] = True
        stays = ~sent[previous.class_ids]
        vectors[previous.class_ids[stays]] = previous.vectors[stays]
    class_ids = np.flatnonzero(present).astype(np.int32)
    return PrototypeSet(class_ids=class_ids, vectors=vectors[class_ids])


def with_means(state: Payload, means: Payload, *, classes: int) -> Payload:
    """The prototypes of a state, with those of the means in place of theirs."""
    new = means.prototypes
    assert new is not None  # of a method with prototypes
    sent = np.zeros(classes, dtype=bool)
    sent[new.class_ids] = True
    vectors = np.zeros((classes, new.vectors.shape[1]), dtype=np.float32)
    vectors[new.class_ids] = new.vectors
    return Payload(prototypes=merged_with(state.prototypes, sent, vectors))


def uploaded_prototypes(uploads: Iterable[Upload]) -> Iterator[PrototypeSet]:
    for upload in uploads:
        assert upload.payload.prototypes is not None  # required by the upload rules
        yield upload.payload.prototypes


def _rows(prototypes: PrototypeSet) -> slice | np.ndarray[tuple[int], np.dtype[np.int32]]:
    """The rows as an index; a slice where they are contiguous, since numpy then adds in place."""
    ids = prototypes.class_ids
    if len(ids) and ids[-1] - ids[0] + 1 == len(ids):
        return slice(int(ids[0]), int(ids[-1]) + 1)
    return ids
