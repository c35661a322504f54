"""FedTGP on the client: FedProto with prototypes that the server trains."""

from __future__ import annotations

from feddbp_client.methods.fedproto import FedProto


class FedTGP(FedProto):
    """Differs from FedProto only in the origin of its prototypes, and in that every class has one."""
