"""How a client's own prototypes differ from the global ones, for operators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from feddbp_common.wire import Payload, PrototypeSet


@dataclass(frozen=True, kw_only=True, eq=False)
class ComparedPrototypes:
    """One row per class that both the client and the global state have."""

    client_id: int
    class_ids: npt.NDArray[np.int32]
    samples: npt.NDArray[np.int32]
    """Behind the client's prototype; 0 where the method does not send them."""
    distances: npt.NDArray[np.float32]
    """Euclidean."""
    cosines: npt.NDArray[np.float32]
    kept: npt.NDArray[np.bool_]
    """The channels in which the client keeps its own values; none of them if the method keeps none."""

    def __len__(self) -> int:
        return len(self.class_ids)


def compare(
    client_id: int, own: Payload, shared: PrototypeSet | None, kept: npt.NDArray[np.bool_] | None
) -> ComparedPrototypes | None:
    """`kept` has a row per class of the upload; None if either side has no prototypes or their widths differ."""
    if own.prototypes is None or shared is None or own.prototypes.vectors.shape[1:] != shared.vectors.shape[1:]:
        return None
    uploaded = own.prototypes
    common, mine, theirs = np.intersect1d(uploaded.class_ids, shared.class_ids, return_indices=True)
    first, second = uploaded.vectors[mine].astype(np.float64), shared.vectors[theirs].astype(np.float64)
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    counts = np.zeros(len(uploaded), np.int32) if uploaded.counts is None else uploaded.counts
    marks = np.zeros(uploaded.vectors.shape, dtype=bool) if kept is None else kept
    return ComparedPrototypes(
        client_id=client_id,
        class_ids=common.astype(np.int32),
        samples=counts[mine],
        distances=np.linalg.norm(first - second, axis=1).astype(np.float32),
        cosines=((first * second).sum(axis=1) / np.maximum(lengths, 1e-12)).astype(np.float32),
        kept=marks[mine],
    )
