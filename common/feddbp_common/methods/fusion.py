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
    at_least: Marks = scores >= threshold
    if np.count_nonzero(at_least) == k * len(scores):
        return at_least
    above = scores > threshold
    ties = scores == threshold
    room = k - above.sum(axis=1, keepdims=True)
    marks: Marks = above | (ties & (ties.cumsum(axis=1) <= room))
    return marks


def fuse(shared: PrototypeSet, own: PrototypeSet, keep: Marks, *, eta: float) -> PrototypeSet:
    """The global prototypes with the client's own value, at weight eta, in the channels it keeps.

    `keep` has a row for each of the client's own classes. A class that is not among the global ones stays out.
    """
    width = shared.vectors.shape[1]
    known = np.isin(own.class_ids, shared.class_ids)
    rows = np.searchsorted(shared.class_ids, own.class_ids)
    # only the channels that are kept are computed: they are a few of hundreds
    kept = np.flatnonzero(keep if known.all() else keep & known[:, np.newaxis])
    row, channel = np.divmod(kept, width)
    vectors = shared.vectors.copy()
    values, place = vectors.reshape(-1), rows[row] * width + channel
    values[place] = eta * own.vectors.reshape(-1)[kept] + (1.0 - eta) * values[place]
    return PrototypeSet(class_ids=shared.class_ids, vectors=vectors)
