"""FPL on the server: clusters the prototypes of each class, and sends one prototype per cluster."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from feddbp_common.methods.fpl import CLUSTER_CLASSES, CLUSTER_PROTOTYPES, FPLSettings
from feddbp_common.wire import Payload, PrototypeSet
from feddbp_common.wire.payload import FloatArray
from feddbp_server.strategies.averaging import uploaded_prototypes
from feddbp_server.strategies.base import Strategy, Upload
from feddbp_server.strategies.finch import cluster_means, coarsest_partition


class FPLStrategy(Strategy[FPLSettings]):
    """A class without uploads keeps its clusters."""

    aggregates_prototypes_only = True

    def aggregate(self, state: Payload, uploads: Iterable[Upload], *, round_number: int) -> Payload:
        clusters = {**_stored(state), **_clusters_of(uploaded_prototypes(uploads))}
        if not clusters:
            return Payload()
        in_order = sorted(clusters)
        class_ids = np.repeat(in_order, [len(clusters[class_id]) for class_id in in_order])
        return Payload(
            tensors={
                CLUSTER_PROTOTYPES: np.concatenate([clusters[class_id] for class_id in in_order]),
                CLUSTER_CLASSES: class_ids.astype(np.int32),
            }
        )

    def reply(self, state: Payload, own_upload: Payload | None) -> Payload:
        return state


def _stored(state: Payload) -> dict[int, FloatArray]:
    if not state.tensors:
        return {}
    class_ids = state.tensors[CLUSTER_CLASSES]
    return {
        int(class_id): state.tensors[CLUSTER_PROTOTYPES][class_ids == class_id] for class_id in np.unique(class_ids)
    }


def _clusters_of(sets: Iterable[PrototypeSet]) -> dict[int, FloatArray]:
    """The cluster prototypes of each class, one row per cluster."""
    rows: dict[int, list[FloatArray]] = {}
    for prototypes in sets:
        for class_id, vector in zip(prototypes.class_ids.tolist(), prototypes.vectors, strict=True):
            rows.setdefault(class_id, []).append(vector)
    return {class_id: _cluster_prototypes(vectors) for class_id, vectors in rows.items()}


def _cluster_prototypes(vectors: list[FloatArray]) -> FloatArray:
    # sorted by their bytes: neither ties between neighbours nor rounding may depend on which client sent what
    in_order: list[FloatArray] = sorted(vectors, key=lambda vector: vector.tobytes())
    rows = np.stack(in_order).astype(np.float64)
    return cluster_means(rows, coarsest_partition(rows)).astype(np.float32)
