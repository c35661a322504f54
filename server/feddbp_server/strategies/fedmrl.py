"""FedMRL on the server: the mean of the clients' small models."""

from __future__ import annotations

from feddbp_common.methods.fedmrl import FedMRLSettings
from feddbp_server.strategies.tensor_averaging import TensorAveraging


class FedMRLStrategy(TensorAveraging[FedMRLSettings]):
    """Clients have equal weight, or are weighted by their training samples."""

    @property
    def by_samples(self) -> bool:
        return self.settings.weighted
