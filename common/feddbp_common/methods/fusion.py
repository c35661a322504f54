"""FedDBP's fusion of a client's own prototypes with the global ones, for whichever side does it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from feddbp_common.wire import PrototypeSet
from feddbp_common.wire.payload import ChannelArray, FloatArray

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


def top_channels_of(scores: FloatArray, k: int) -> ChannelArray:
    """The k channels of each row that `mark_top_channels` marks, in ascending order."""
    marked = np.flatnonzero(mark_top_channels(scores, k))
    channels: ChannelArray = (marked % scores.shape[1]).astype(np.uint16).reshape(len(scores), k)
    return channels


def fuse(shared: PrototypeSet, own: PrototypeSet, keep: Marks, *, eta: float) -> PrototypeSet:
    """The global prototypes with the client's own value, at weight eta, in the channels it keeps.

    `keep` has a row for each of the client's own classes. A class that is not among the global ones stays out.
    """
    return _fuse_at(shared, own, np.flatnonzero(keep), eta)


def fuse_channels(shared: PrototypeSet, own: PrototypeSet, channels: ChannelArray, *, eta: float) -> PrototypeSet:
    """As `fuse`, with the channels that are kept of each row instead of marks."""
    width = shared.vectors.shape[1]
    return _fuse_at(shared, own, (np.arange(len(own))[:, np.newaxis] * width + channels).reshape(-1), eta)


def _fuse_at(shared: PrototypeSet, own: PrototypeSet, kept: npt.NDArray[np.intp], eta: float) -> PrototypeSet:
    """`kept` are places in the flattened vectors of `own`: only these are computed, a few of hundreds in each row."""
    vectors, place = shared.vectors.copy(), kept
    if not np.array_equal(own.class_ids, shared.class_ids):
        width = vectors.shape[1]
        row, channel = np.divmod(kept, width)
        known = np.isin(own.class_ids, shared.class_ids)[row]
        kept = kept[known]
        place = np.searchsorted(shared.class_ids, own.class_ids)[row[known]] * width + channel[known]
    values = vectors.reshape(-1)
    values[place] = eta * own.vectors.reshape(-1)[kept] + (1.0 - eta) * values[place]
    return PrototypeSet(class_ids=shared.class_ids, vectors=vectors)
