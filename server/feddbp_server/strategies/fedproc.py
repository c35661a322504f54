"""FedProc on the server: one average per class, by samples unless clients are to count equally."""

from __future__ import annotations

from feddbp_common.methods.fedproc import FedProcSettings
from feddbp_server.strategies.averaging import PrototypeAveraging


class FedProcStrategy(PrototypeAveraging[FedProcSettings]):
    """Weighted by samples, the result is the mean of all clients' normalised features, as if they had been pooled."""

    @property
    def by_samples(self) -> bool:
        return self.settings.weighted
