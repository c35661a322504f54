"""FedProto: clients exchange class means instead of weights and align features with them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from feddbp_common.methods.contract import (
    CollectingSettings,
    ExchangeShape,
    Method,
    MethodSettings,
    SumWeights,
    all_rules,
)
from feddbp_common.methods.payload_size import GLOBAL_PROTOTYPES, LOCAL_PROTOTYPES
from feddbp_common.wire import PayloadRules, PrototypeRule

AlignmentDistance = Literal["mse", "squared", "euclidean"]
"""Distance of a feature to its prototype: mean of the squares over channels, their sum, or the root of the sum."""


class FedProtoSettings(CollectingSettings):
    """The weight of alignment, and options where paper and published code differ."""

    lambda_proto: float = Field(
        10.0, ge=0, description="weight of the distance to prototypes; use 10 with mse, 0.1 with euclidean"
    )
    distance: AlignmentDistance = Field(
        "mse", description="distance to prototypes: mse as in published code, euclidean as in the papers, or squared"
    )
    inference: Literal["prototype", "head"] = Field(
        "prototype", description="inference rule of the reported accuracy; both are recorded"
    )


def prototypes_up(_: MethodSettings, shape: ExchangeShape) -> PayloadRules:
    """Returns the rules for prototypes of the classes that a client holds."""
    return PayloadRules(prototypes=PrototypeRule(classes=shape.classes, width=shape.feature_dim))


def prototypes_down(_: MethodSettings, shape: ExchangeShape) -> PayloadRules:
    """Returns the rules for global prototypes, of which there are none in the first round."""
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
    loss_terms={"proto": "prototype distance"},
    aggregation_rules=all_rules,
    sum_weights=lambda _: SumWeights(),
    up=LOCAL_PROTOTYPES,
    down=GLOBAL_PROTOTYPES,
)
