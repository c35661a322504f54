"""FedKD on the server: decompresses, averages and compresses the clients' small models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod

import numpy as np

from feddbp_common.errors import refuse
from feddbp_common.methods.fedkd import FEDKD, ROUND, TOTAL, FedKDSettings, expanded, weights_of
from feddbp_common.methods.payload_size import REAL_BYTES
from feddbp_common.methods.small_model import SMALL_MODEL
from feddbp_common.wire import Payload, decode, encode
from feddbp_common.wire.payload import AnyArray, FloatArray
from feddbp_common.wire.svd import compress, decompress, dense_shapes
from feddbp_server.strategies.base import RunFacts, Shapes, Strategy, Upload
from feddbp_server.strategies.robust import tensor_average


class FedKDStrategy(Strategy[FedKDSettings]):
    """Clients have equal weight.

    With `target = params` the state is the compressed mean, which is sent. With `target = update` it is the last
    compressed mean update and the sum of all of them: a client that took part in the last round needs only the former,
    any other client the latter.
    """

    compresses_uploads = True

    def __init__(self, settings: FedKDSettings, facts: RunFacts) -> None:
        super().__init__(settings, facts)
        self._sends_updates = settings.target == "update"
        self.personalises = self._sends_updates

    def layout(self, shapes: Shapes) -> Shapes:
        dense = dense_shapes({name: shape for name, shape in shapes.items() if name != ROUND})
        for name in SMALL_MODEL:
            if name not in dense:
                refuse(name, "is missing")
        return dense

    def expanded(self, payload: Payload) -> Payload:
        return expanded(payload)

    def expanded_bytes(self, payload: Payload) -> int:
        dense = dense_shapes({name: tensor.shape for name, tensor in weights_of(payload).items()})
        return REAL_BYTES * sum(map(prod, dense.values()))

    def aggregate(self, state: Payload, uploads: Iterable[Upload], *, round_number: int) -> Payload:
        mean = tensor_average(self.facts)
        for upload in uploads:
            mean.add(decompress(weights_of(upload.payload)), of=f"client {upload.client_id}")
        averaged = mean.result()
        compressed = self._compressed(averaged, round_number)
        if not self._sends_updates:
            return Payload(tensors=compressed)
        moved = _moved(state, self._as_received(compressed), round_number)
        self.check_sendable(
            moved,
            FEDKD.download_rules(self.settings, self.facts.shape),
            otherwise="the shared model is out of bounds: updates of clients are too large, or mentee_learning_rate is",
            instead=_moved(state, {name: np.zeros_like(update) for name, update in averaged.items()}, round_number),
        )
        return replace(moved, tensors={**moved.tensors, **compressed})

    def from_means(self, state: Payload, means: Payload, *, round_number: int) -> Payload:
        return Payload(tensors=self._compressed(means.tensors, round_number))

    def _compressed(self, averaged: Mapping[str, AnyArray], round_number: int) -> dict[str, FloatArray]:
        return compress(averaged, self.settings.energy(round_number, self.facts.rounds))

    def reply(self, state: Payload, own_upload: Payload | None) -> Payload:
        if not self._sends_updates or not state.tensors:
            return state
        knows_where_it_was = own_upload is not None and _round_of(own_upload) == _round_of(state) - 1
        return Payload(
            tensors={
                name: tensor
                for name, tensor in state.tensors.items()
                if name == ROUND or name.startswith(TOTAL) is not knows_where_it_was
            }
        )

    def _as_received(self, tensors: dict[str, FloatArray]) -> dict[str, AnyArray]:
        """With half precision on the wire, clients add up rounded updates, so the sum here does, too."""
        encoded = encode(Payload(tensors=tensors), real_type=self.facts.wire_type)
        return dict(decode(encoded.manifest, encoded.body()).tensors)


def _round_of(payload: Payload) -> int:
    return int(payload.tensors[ROUND][0])


def _moved(state: Payload, update: Mapping[str, AnyArray], round_number: int) -> Payload:
    """The state after an update, with the sum of all updates; each is as clients receive it."""
    totals = {
        TOTAL + name: state.tensors[TOTAL + name] + change if state.tensors else change
        for name, change in decompress(update).items()
    }
    return Payload(tensors={ROUND: np.array([round_number + 1], dtype=np.int32), **update, **totals})
