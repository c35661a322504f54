"""FedProc on the server: one average per class, weighted by samples or not."""

from __future__ import annotations

from feddbp_common.methods.fedproc import FedProcSettings
from feddbp_server.strategies.prototype_averaging import PrototypeAveraging


class FedProcStrategy(PrototypeAveraging[FedProcSettings]):
    """Weighted by samples, the result is the mean of all clients' normalised features, as if pooled."""

    @property
    def by_samples(self) -> bool:
        return self.settings.weighted
