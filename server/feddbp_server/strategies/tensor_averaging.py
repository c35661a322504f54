"""The strategy of methods that send every client the average of the clients' tensors."""

from __future__ import annotations

from collections.abc import Iterable

from feddbp_common.wire import Payload
from feddbp_server.strategies.base import SettingsT, Shapes, Strategy, Upload
from feddbp_server.strategies.robust import tensor_average


class TensorAveraging(Strategy[SettingsT]):
    """Sends every client the average of the clients' tensors, whose shapes all clients have in common."""

    @property
    def by_samples(self) -> bool:
        """Whether a client is weighted by its training samples."""
        return False

    def layout(self, shapes: Shapes) -> Shapes:
        return shapes

    def aggregate(self, state: Payload, uploads: Iterable[Upload], *, round_number: int) -> Payload:
        average = tensor_average(self.facts)
        for upload in uploads:
            weight = upload.samples if self.by_samples else 1.0
            average.add(upload.payload.tensors, weight=weight, of=f"client {upload.client_id}")
        return Payload(tensors=average.result())

    def from_means(self, state: Payload, means: Payload, *, round_number: int) -> Payload:
        return means

    def reply(self, state: Payload, own_upload: Payload | None) -> Payload:
        return state
