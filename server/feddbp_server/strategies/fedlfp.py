"""FedLFP on the server: everybody's prototypes in one heap, clustered without knowing their classes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np

from feddbp_common.methods.fedlfp import (
    CONFIDENCE,
    COUNTS,
    GLOBAL_PROTOTYPES,
    LOCAL_PROTOTYPES,
    FedLFPSettings,
    cluster_count,
)
from feddbp_common.seeding import derive_seed
from feddbp_common.wire import Payload
from feddbp_common.wire.payload import FloatArray, IntArray
from feddbp_server.strategies.base import Strategy, Upload
from feddbp_server.strategies.weighted_kmeans import Indices, Wide, weighted_kmeans


class FedLFPStrategy(Strategy[FedLFPSettings]):
    """Global prototypes are the centroids of a weighted K-means; too few rows leave things as they were."""

    def aggregate(self, known: Payload, uploads: Iterable[Upload], *, round_number: int) -> Payload:
        heap = _Heap.of(uploads)
        clusters = cluster_count(self.settings, self.facts.shape)
        if heap is None or len(heap.rows) < clusters:
            return known
        centroids = weighted_kmeans(
            heap.rows,
            heap.weights(),
            clusters=clusters,
            iterations=self.settings.iterations,
            random=np.random.default_rng(derive_seed(self.facts.seed, "clusters", round_number)),
        )
        if self.settings.unit_centroids:
            centroids = _unit(centroids)
        return Payload(tensors={GLOBAL_PROTOTYPES: centroids.astype(np.float32)})

    def reply(self, known: Payload, own_upload: Payload | None) -> Payload:
        return known


@dataclass(frozen=True, eq=False)
class _Heap:
    """All rows of a round in an order that depends on nothing but the rows."""

    rows: FloatArray
    confidence: FloatArray
    counts: IntArray

    @classmethod
    def of(cls, uploads: Iterable[Upload]) -> Self | None:
        parts = [(upload.payload.tensors, max(upload.label_counts)) for upload in uploads]
        if not parts:
            return None
        rows = np.concatenate([tensors[LOCAL_PROTOTYPES] for tensors, _ in parts])
        confidence = np.concatenate([tensors[CONFIDENCE] for tensors, _ in parts])
        # rows have no class, but none can stand for more samples than the client's largest class has
        counts = np.concatenate([np.minimum(tensors[COUNTS], largest) for tensors, largest in parts]).astype(np.int32)
        order = _byte_order(rows, confidence, counts)
        return cls(rows[order], confidence[order], counts[order])

    def weights(self) -> Wide:
        """Half by samples, half by confidence; each half adds up to the number of rows."""
        counts, confidence = self.counts.astype(np.float64), self.confidence.astype(np.float64)
        weights: Wide = len(self.rows) * (counts / counts.sum() + confidence / confidence.sum())
        return weights


def _byte_order(rows: FloatArray, confidence: FloatArray, counts: IntArray) -> Indices:
    """Sorts by bytes: which order it is does not matter, as long as arrival has no part in it."""
    bits = [rows.view(np.uint32), confidence.view(np.uint32)[:, None], counts.view(np.uint32)[:, None]]
    records = np.concatenate(bits, axis=1)
    return np.argsort(records.view(np.dtype((np.void, records.strides[0]))).ravel())


def _unit(vectors: Wide) -> Wide:
    """Rows at length one; one without length stays as it is."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1.0)
