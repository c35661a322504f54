"""FedLFP on the server: the prototypes of all clients, clustered without their classes."""

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
from feddbp_server.strategies.numerics import Wide
from feddbp_server.strategies.weighted_kmeans import Indices, weighted_kmeans


class FedLFPStrategy(Strategy[FedLFPSettings]):
    """Global prototypes are the centroids of a weighted K-means; with too few rows the previous ones stay."""

    def aggregate(self, state: Payload, uploads: Iterable[Upload], *, round_number: int) -> Payload:
        pool = _Pool.of(uploads)
        clusters = cluster_count(self.settings, self.facts.shape)
        if pool is None or len(pool.rows) < clusters:
            return state
        centroids = weighted_kmeans(
            pool.rows,
            pool.weights(),
            clusters=clusters,
            iterations=self.settings.iterations,
            random=np.random.default_rng(derive_seed(self.facts.seed, "clusters", round_number)),
        )
        if self.settings.unit_centroids:
            centroids = _unit(centroids)
        return Payload(tensors={GLOBAL_PROTOTYPES: centroids.astype(np.float32)})

    def reply(self, state: Payload, own_upload: Payload | None) -> Payload:
        return state


@dataclass(frozen=True, eq=False)
class _Pool:
    """All rows of a round, in an order that depends only on the rows."""

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
        # rows have no class, but none can represent more samples than the client's largest class has
        counts = np.concatenate([np.minimum(tensors[COUNTS], largest) for tensors, largest in parts]).astype(np.int32)
        order = _byte_order(rows, confidence, counts)
        return cls(rows[order], confidence[order], counts[order])

    def weights(self) -> Wide:
        """Weights: half by samples, half by confidence; each half adds up to the number of rows."""
        counts, confidence = self.counts.astype(np.float64), self.confidence.astype(np.float64)
        weights: Wide = len(self.rows) * (counts / counts.sum() + confidence / confidence.sum())
        return weights


def _byte_order(rows: FloatArray, confidence: FloatArray, counts: IntArray) -> Indices:
    """Sorts by bytes: any order will do that does not depend on arrival."""
    bits = [rows.view(np.uint32), confidence.view(np.uint32)[:, None], counts.view(np.uint32)[:, None]]
    records = np.concatenate(bits, axis=1)
    return np.argsort(records.view(np.dtype((np.void, records.strides[0]))).ravel())


def _unit(vectors: Wide) -> Wide:
    """Rows scaled to length one; zero rows stay as they are."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1.0)
