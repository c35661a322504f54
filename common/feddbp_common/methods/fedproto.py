"""FedProto: class means travel instead of weights, and features are drawn to them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from feddbp_common.methods.contract import CollectingSettings, ExchangeShape, Method, MethodSettings
from feddbp_common.methods.payload_size import GLOBAL_PROTOTYPES, LOCAL_PROTOTYPES
from feddbp_common.wire import PayloadRules, PrototypeRule

AlignmentDistance = Literal["mse", "squared", "euclidean"]
"""Distance of a feature to its prototype: squares averaged over channels, their sum, or the root of their sum."""


class FedProtoSettings(CollectingSettings):
    """One weight, and a choice wherever paper and published code part."""

    lambda_proto: float = Field(
        10.0, ge=0, description="weight of the pull of features to prototypes; 10 goes with mse, 0.1 with euclidean"
    )
    distance: AlignmentDistance = Field(
        "mse", description="of the pull: mse as in all published code, euclidean as in the papers, or squared"
    )
    inference: Literal["prototype", "head"] = Field(
        "prototype", description="the rule whose accuracy counts; both are recorded"
    )


def prototypes_up(_: MethodSettings, shape: ExchangeShape) -> PayloadRules:
    """A row for each class a client has."""
    return PayloadRules(prototypes=PrototypeRule(classes=shape.classes, width=shape.feature_dim))


def prototypes_down(_: MethodSettings, shape: ExchangeShape) -> PayloadRules:
    """A row for each class the server knows, which at first is none."""
    return PayloadRules(
        prototypes=PrototypeRule(classes=shape.classes, width=shape.feature_dim), prototypes_required=False
    )


FEDPROTO = Method(
    name="fedproto",
    title="FedProto",
    reference="Tan et al., AAAI 2022",
    settings=FedProtoSettings,
    upload_rules=prototypes_up,
    download_rules=prototypes_down,
    strategy="feddbp_server.strategies.fedproto:FedProtoStrategy",
    trainer="feddbp_client.methods.fedproto:FedProto",
    up=LOCAL_PROTOTYPES,
    down=GLOBAL_PROTOTYPES,
)
