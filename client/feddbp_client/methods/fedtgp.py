"""FedTGP on the client: what FedProto does, with prototypes that the server has trained."""

from __future__ import annotations

from feddbp_client.methods.fedproto import FedProto


class FedTGP(FedProto):
    """Differs from FedProto only in where its prototypes come from, and in that every class has one."""
