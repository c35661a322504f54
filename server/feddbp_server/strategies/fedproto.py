"""FedProto on the server: one average per class, in which clients count equally."""

from __future__ import annotations

from feddbp_common.methods.fedproto import FedProtoSettings
from feddbp_server.strategies.averaging import PrototypeAveraging


class FedProtoStrategy(PrototypeAveraging[FedProtoSettings]):
    """The paper writes a mean by samples; its own code takes the plain one, and so do the comparisons with it."""
