"""FedDBP's fusion of a client's own prototypes with the global ones, for whichever side does it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from feddbp_common.wire import PrototypeSet
from feddbp_common.wire.payload import FloatArray

Marks = npt.NDArray[np.bool_]


def mark_top_channels(scores: FloatArray, k: int) -> Marks:
    """Marks the k largest scores of each row; among equals the lower channel wins."""
    width = scores.shape[1]
    if k == 0 or not len(scores):
        return np.zeros(scores.shape, dtype=bool)
    threshold = np.partition(scores, width - k, axis=1)[:, width - k, None]
    above = scores > threshold
    ties = scores == threshold
    room = k - above.sum(axis=1, keepdims=True)
    marks: Marks = above | (ties & (ties.cumsum(axis=1) <= room))
    return marks


def fuse(shared: PrototypeSet, own: PrototypeSet, keep: Marks, *, eta: float) -> PrototypeSet:
    """The global prototypes with the client's own value, at weight eta, in the channels it keeps.

    `keep` has a row for each of the client's own classes. A class that is not among the global ones stays out.
    """
    known = np.isin(own.class_ids, shared.class_ids)
    rows = np.searchsorted(shared.class_ids, own.class_ids[known])
    vectors = shared.vectors.copy()
    blend = eta * own.vectors[known] + (1.0 - eta) * vectors[rows]
    vectors[rows] = np.where(keep[known], blend, vectors[rows])
    return PrototypeSet(class_ids=shared.class_ids, vectors=vectors)
