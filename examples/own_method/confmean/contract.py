"""What server and clients agree on: the settings, and what may travel in each direction."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from feddbp_common.methods.contract import CollectingSettings, ExchangeShape, Method
from feddbp_common.methods.fedproto import prototypes_down
from feddbp_common.wire import Dim, PayloadRules, PrototypeRule, TensorRule

CONFIDENCE: Final = "confidence"
"""Name of the uploaded tensor, [classes]: zero for a class the client does not hold."""


class ConfMeanSettings(CollectingSettings):
    """Every setting needs a default and a description; `feddbp methods confmean` prints them."""

    pull: float = Field(1.0, ge=0, description="weight of the distance of features to the prototype of their class")
    sharpness: float = Field(
        1.0, ge=0, le=10, description="weight of a client is confidence to this power; 0 is the plain mean"
    )


def _uploads(_: ConfMeanSettings, shape: ExchangeShape) -> PayloadRules:
    """The server checks every upload against this. The bounds keep a client from claiming more than full confidence."""
    return PayloadRules(
        prototypes=PrototypeRule(classes=shape.classes, width=shape.feature_dim),
        tensors=(TensorRule(name=CONFIDENCE, shape=(Dim.exactly(shape.classes),), low=0.0, high=1.0),),
    )


CONFMEAN = Method(
    name="confmean",
    title="ConfMean",
    reference="an example",
    settings=ConfMeanSettings,
    upload_rules=_uploads,
    download_rules=prototypes_down,  # as in FedProto: a row for each class the server knows
    # By name, not imported: the server must start without torch, and clients without the server.
    strategy="confmean.strategy:ConfMeanStrategy",
    trainer="confmean.client:ConfMean",
)
