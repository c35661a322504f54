"""On the server: the mean prototype of each class, in which clients count by their confidence."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from confmean.contract import CONFIDENCE, ConfMeanSettings
from feddbp_common.wire import Payload, PrototypeSet
from feddbp_server.strategies import Strategy, Upload


class ConfMeanStrategy(Strategy[ConfMeanSettings]):
    """Uploads come in the order of client ids; summing in float64 and rounding once gives the same bits every time."""

    def aggregate(self, state: Payload, uploads: Iterable[Upload], *, round_number: int) -> Payload:
        shape = self.facts.shape
        sums = np.zeros((shape.classes, shape.feature_dim))
        weights = np.zeros(shape.classes)
        for upload in uploads:
            sent = upload.payload.prototypes
            assert sent is not None  # the upload rules require them
            confidence = upload.payload.tensors[CONFIDENCE][sent.class_ids].astype(np.float64)
            weight = confidence**self.settings.sharpness
            sums[sent.class_ids] += weight[:, None] * sent.vectors
            weights[sent.class_ids] += weight
        return Payload(prototypes=_updated(state.prototypes, sums, weights))

    def reply(self, state: Payload, own_upload: Payload | None) -> Payload:
        return state


def _updated(previous: PrototypeSet | None, sums: np.ndarray, weights: np.ndarray) -> PrototypeSet:
    """The weighted means; a class without any weight in this round keeps its previous prototype."""
    rows = {} if previous is None else dict(zip(previous.class_ids.tolist(), previous.vectors, strict=True))
    for class_id in np.flatnonzero(weights).tolist():
        rows[class_id] = (sums[class_id] / weights[class_id]).astype(np.float32)
    class_ids = sorted(rows)
    vectors = np.array([rows[class_id] for class_id in class_ids], dtype=np.float32).reshape(-1, sums.shape[1])
    return PrototypeSet(class_ids=np.array(class_ids, dtype=np.int32), vectors=vectors)
