"""FedTGP: the server trains global prototypes with a margin between classes instead of averaging them."""

from __future__ import annotations

from pydantic import Field

from feddbp_common.methods.contract import Method, always
from feddbp_common.methods.fedproto import FedProtoSettings, prototypes_down, prototypes_up
from feddbp_common.methods.payload_size import GLOBAL_PROTOTYPES, LOCAL_PROTOTYPES


class FedTGPSettings(FedProtoSettings):
    """FedProto's settings for the client, and the training of prototypes on the server."""

    tau: float = Field(100.0, ge=0, description="maximum margin between prototypes of different classes")
    server_epochs: int = Field(100, ge=1, description="passes over the uploaded prototypes per round")
    server_batch_size: int | None = Field(
        None, ge=1, description="uploaded prototypes per step; none: the clients' batch size"
    )
    server_learning_rate: float | None = Field(
        None, gt=0, description="step size on the server; none: the clients' learning rate"
    )


FEDTGP = Method(
    name="fedtgp",
    title="FedTGP",
    reference="Zhang et al., AAAI 2024",
    settings=FedTGPSettings,
    upload_rules=prototypes_up,
    download_rules=prototypes_down,
    strategy="feddbp_server.strategies.fedtgp:FedTGPStrategy",
    trainer="feddbp_client.methods.fedtgp:FedTGP",
    loss_terms={"proto": "prototype distance"},
    has_history=always,
    up=LOCAL_PROTOTYPES,
    down=GLOBAL_PROTOTYPES,
)
