"""FedProto on the server: one average per class; clients have equal weight."""

from __future__ import annotations

from feddbp_common.methods.fedproto import FedProtoSettings
from feddbp_server.strategies.prototype_averaging import PrototypeAveraging


class FedProtoStrategy(PrototypeAveraging[FedProtoSettings]):
    """Unweighted: the paper has a mean by samples, but its code and comparisons with it do not."""
