"""LG-FedAvg on the server: the mean of the clients' heads."""

from __future__ import annotations

from collections.abc import Iterable

from feddbp_common.methods.lg_fedavg import LGFedAvgSettings
from feddbp_common.wire import Payload
from feddbp_server.strategies.base import Strategy, Upload
from feddbp_server.strategies.numerics import initial_head
from feddbp_server.strategies.robust import tensor_average


class LGFedAvgStrategy(Strategy[LGFedAvgSettings]):
    """A client's head is weighted by its training samples, as declared at join, or not at all."""

    def initial(self) -> Payload:
        return Payload(tensors=initial_head(self.facts))

    def aggregate(self, state: Payload, uploads: Iterable[Upload], *, round_number: int) -> Payload:
        mean = tensor_average(self.facts)
        for upload in uploads:
            mean.add(upload.payload.tensors, weight=upload.samples if self.settings.weighted else 1.0)
        return self.from_means(state, Payload(tensors=mean.result()), round_number=round_number)

    def from_means(self, state: Payload, means: Payload, *, round_number: int) -> Payload:
        return Payload(tensors={**state.tensors, **means.tensors})

    def reply(self, state: Payload, own_upload: Payload | None) -> Payload:
        return state
