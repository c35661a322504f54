"""FD on the server: the mean logits of every class; with `leave_one_out`, of the other clients."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from feddbp_common.methods.fd import FDSettings
from feddbp_common.wire import Payload, PrototypeSet
from feddbp_common.wire.payload import AnyArray, FloatArray, IntArray
from feddbp_common.wire.rules import value_bound
from feddbp_server.strategies.averaging import with_means
from feddbp_server.strategies.base import RunFacts, Strategy, Upload
from feddbp_server.strategies.robust import prototype_average

_ROWS: Final = "averaged_rows"
"""Checksums of the rows in each mean, class by class. They show whether a client's last upload is among them: it is not
if others have sent this class since."""
_ROWS_PER_CLASS: Final = "averaged_rows_per_class"


class FDStrategy(Strategy[FDSettings]):
    """Clients have equal weight."""

    aggregates_prototypes_only = True

    def __init__(self, settings: FDSettings, facts: RunFacts) -> None:
        super().__init__(settings, facts)
        self.personalises = settings.leave_one_out

    def aggregate(self, state: Payload, uploads: Iterable[Upload], *, round_number: int) -> Payload:
        mean = prototype_average(self.facts, width=self.facts.shape.classes)
        sent: dict[int, list[int]] = {}
        for upload in uploads:
            logits = upload.payload.prototypes
            assert logits is not None  # required by the upload rules
            mean.add(logits)
            if self.settings.leave_one_out:
                for class_id, row in zip(logits.class_ids.tolist(), logits.vectors, strict=True):
                    sent.setdefault(class_id, []).append(_checksum(row))
        means = mean.result(state.prototypes)
        if not self.settings.leave_one_out:
            return Payload(prototypes=means)
        return Payload(prototypes=means, tensors=_as_tensors(means.class_ids, {**_averaged_rows(state), **sent}))

    def from_means(self, state: Payload, means: Payload, *, round_number: int) -> Payload:
        return with_means(state, means, classes=self.facts.shape.classes)

    def reply(self, state: Payload, own_upload: Payload | None) -> Payload:
        if not self.settings.leave_one_out:
            return state
        means, own = state.prototypes, own_upload.prototypes if own_upload is not None else None
        if means is None or own is None:
            return Payload(prototypes=means)
        others = _without(own, means, _averaged_rows(state))
        # subtracted from a rounded mean, so that it may slightly exceed the bound of an upload
        bound = value_bound(self.facts.wire_type)
        return Payload(prototypes=replace(others, vectors=np.clip(others.vectors, -bound, bound)))


def _without(own: PrototypeSet, means: PrototypeSet, averaged: dict[int, list[int]]) -> PrototypeSet:
    """The means of the other clients' uploads, without classes that no other client sent."""
    own_rows = dict(zip(own.class_ids.tolist(), own.vectors, strict=True))
    class_ids: list[int] = []
    vectors: list[FloatArray] = []
    for class_id, mean in zip(means.class_ids.tolist(), means.vectors, strict=True):
        row, senders = own_rows.get(class_id), averaged[class_id]
        if row is not None and _checksum(row) in senders:
            if len(senders) == 1:
                continue
            others = len(senders) * mean.astype(np.float64) - row
            mean = (others / (len(senders) - 1)).astype(np.float32)
        class_ids.append(class_id)
        vectors.append(mean)
    width = means.vectors.shape[1]
    return PrototypeSet(
        class_ids=np.array(class_ids, dtype=np.int32), vectors=np.array(vectors, dtype=np.float32).reshape(-1, width)
    )


def _checksum(row: FloatArray) -> int:
    return zlib.crc32(row.tobytes())


def _averaged_rows(state: Payload) -> dict[int, list[int]]:
    if state.prototypes is None or not len(state.prototypes):
        return {}
    ends = np.cumsum(state.tensors[_ROWS_PER_CLASS])[:-1]
    checksums = np.split(state.tensors[_ROWS].view(np.uint32), ends)
    return {int(c): rows.tolist() for c, rows in zip(state.prototypes.class_ids, checksums, strict=True)}


def _as_tensors(class_ids: IntArray, averaged: dict[int, list[int]]) -> dict[str, AnyArray]:
    rows = [averaged[class_id] for class_id in class_ids.tolist()]
    return {
        _ROWS: np.array([checksum for of_class in rows for checksum in of_class], dtype=np.uint32).view(np.int32),
        _ROWS_PER_CLASS: np.array([len(of_class) for of_class in rows], dtype=np.int32),
    }
