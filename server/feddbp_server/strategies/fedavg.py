"""FedAvg on the server: the mean of the clients' networks."""

from __future__ import annotations

from feddbp_common.methods.fedavg import FedAvgSettings
from feddbp_server.strategies.tensor_averaging import TensorAveraging


class FedAvgStrategy(TensorAveraging[FedAvgSettings]):
    """Clients are weighted by their training samples, or equally."""

    @property
    def by_samples(self) -> bool:
        return self.settings.weighted
