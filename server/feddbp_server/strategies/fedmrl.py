"""FedMRL on the server: the mean of the clients' small models."""

from __future__ import annotations

from collections.abc import Iterable

from feddbp_common.methods.fedmrl import FedMRLSettings
from feddbp_common.wire import Payload
from feddbp_server.strategies.base import Shapes, Strategy, Upload
from feddbp_server.strategies.tensor_mean import TensorMean


class FedMRLStrategy(Strategy[FedMRLSettings]):
    """Clients have equal weight, or are weighted by their training samples."""

    def layout(self, shapes: Shapes) -> Shapes:
        return shapes

    def aggregate(self, known: Payload, uploads: Iterable[Upload], *, round_number: int) -> Payload:
        mean = TensorMean()
        for upload in uploads:
            weight = upload.samples if self.settings.weighted else 1.0
            mean.add(upload.payload.tensors, weight=weight, of=f"client {upload.client_id}")
        return Payload(tensors=mean.result())

    def reply(self, known: Payload, own_upload: Payload | None) -> Payload:
        return known
