"""The strategy of methods that send every client one average per class."""

from __future__ import annotations

from collections.abc import Iterable

from feddbp_common.wire import Payload
from feddbp_server.strategies.averaging import uploaded_prototypes, with_means
from feddbp_server.strategies.base import SettingsT, Strategy, Upload
from feddbp_server.strategies.robust import prototype_average


class PrototypeAveraging(Strategy[SettingsT]):
    """Sends every client one average per class, under the run's rule of aggregation."""

    aggregates_prototypes_only = True

    @property
    def width(self) -> int:
        return self.facts.shape.feature_dim

    @property
    def by_samples(self) -> bool:
        """Whether a client is weighted by its samples of the class."""
        return False

    def aggregate(self, state: Payload, uploads: Iterable[Upload], *, round_number: int) -> Payload:
        average = prototype_average(self.facts, width=self.width, by_samples=self.by_samples)
        for prototypes in uploaded_prototypes(uploads):
            average.add(prototypes)
        return Payload(prototypes=average.result(state.prototypes))

    def from_means(self, state: Payload, means: Payload, *, round_number: int) -> Payload:
        return with_means(state, means, classes=self.facts.shape.classes)

    def reply(self, state: Payload, own_upload: Payload | None) -> Payload:
        return state
