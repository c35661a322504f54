"""FedKD on the server: decompresses, averages and compresses the clients' small models."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from feddbp_common.errors import refuse
from feddbp_common.methods.fedkd import FEDKD, ROUND, TOTAL, FedKDSettings
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
        kept = {name: tensor for name, tensor in payload.tensors.items() if name == ROUND}
        return Payload(tensors={**kept, **decompress(_weights(payload))})

    def aggregate(self, known: Payload, uploads: Iterable[Upload], *, round_number: int) -> Payload:
        mean = tensor_average(self.facts)
        for upload in uploads:
            mean.add(decompress(_weights(upload.payload)), of=f"client {upload.client_id}")
        compressed = compress(mean.result(), self.settings.energy(round_number, self.facts.rounds))
        if not self._sends_updates:
            return Payload(tensors=compressed)
        totals = _totals(known, self._as_received(compressed))
        self.check_sendable(
            Payload(tensors=totals),
            FEDKD.download_rules(self.settings, self.facts.shape),
            otherwise="the shared model diverged, try a smaller mentee_learning_rate",
        )
        completed = np.array([round_number + 1], dtype=np.int32)
        return Payload(tensors={ROUND: completed, **compressed, **totals})

    def reply(self, known: Payload, own_upload: Payload | None) -> Payload:
        if not self._sends_updates or not known.tensors:
            return known
        knows_where_it_was = own_upload is not None and _round_of(own_upload) == _round_of(known) - 1
        return Payload(
            tensors={
                name: tensor
                for name, tensor in known.tensors.items()
                if name == ROUND or name.startswith(TOTAL) is not knows_where_it_was
            }
        )

    def _as_received(self, tensors: dict[str, FloatArray]) -> dict[str, AnyArray]:
        """With half precision on the wire, clients add up rounded updates, so the sum here does, too."""
        encoded = encode(Payload(tensors=tensors), real_type=self.facts.wire_type)
        return dict(decode(encoded.manifest, encoded.body()).tensors)


def _weights(payload: Payload) -> dict[str, AnyArray]:
    return {name: tensor for name, tensor in payload.tensors.items() if name != ROUND}


def _round_of(payload: Payload) -> int:
    return int(payload.tensors[ROUND][0])


def _totals(known: Payload, compressed: dict[str, AnyArray]) -> dict[str, AnyArray]:
    """The sum of all updates, each as clients receive it."""
    return {
        TOTAL + name: known.tensors[TOTAL + name] + update if known.tensors else update
        for name, update in decompress(compressed).items()
    }
