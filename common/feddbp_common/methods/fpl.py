"""FPL: several prototypes per class, one for each cluster of clients, and their mean.

The paper averages model weights as well; across unlike architectures only prototypes travel.
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from feddbp_common.methods.contract import CollectingSettings, ExchangeShape, Method
from feddbp_common.methods.fedproto import AlignmentDistance, prototypes_up
from feddbp_common.methods.payload_size import LOCAL_PROTOTYPES, REAL_BYTES, ImageShape, PayloadSize
from feddbp_common.wire import Dim, PayloadRules, TensorRule, WireType

CLUSTER_PROTOTYPES: Final = "cluster_prototypes"
"""float32 [rows, d], the clusters of a class next to each other, classes ascending."""
CLUSTER_CLASSES: Final = "cluster_classes"
"""int32 [rows], the class of each row."""


class FPLSettings(CollectingSettings):
    """The temperature, and a choice wherever paper and published code part."""

    tau: float = Field(0.02, gt=0, description="temperature of the contrast with cluster prototypes")
    distance: AlignmentDistance = Field(
        "mse", description="of a feature to its class's unbiased prototype; mse as in the published code"
    )
    inference: Literal["head", "prototype"] = Field(
        "head",
        description="the rule whose accuracy counts; both are recorded. The original evaluates the head of an "
        "averaged model; which rule FedDBP's comparison used is unconfirmed",
    )


def _most_clusters(shape: ExchangeShape) -> int:
    """A cluster of more than one vector has at least two."""
    return shape.classes * max(1, shape.clients // 2)


def _download_rules(_: FPLSettings, shape: ExchangeShape) -> PayloadRules:
    rows = Dim(1, _most_clusters(shape))
    return PayloadRules(
        tensors=(
            TensorRule(name=CLUSTER_PROTOTYPES, shape=(rows, Dim.exactly(shape.feature_dim)), required=False),
            TensorRule(
                name=CLUSTER_CLASSES,
                shape=(rows,),
                types=(WireType.INT32,),
                required=False,
                low=0,
                high=shape.classes - 1,
            ),
        )
    )


def _download_bytes(_: FPLSettings, shape: ExchangeShape, __: ImageShape) -> int:
    return REAL_BYTES * _most_clusters(shape) * (shape.feature_dim + 1)


FPL = Method(
    name="fpl",
    title="FPL",
    reference="Huang et al., CVPR 2023",
    settings=FPLSettings,
    upload_rules=prototypes_up,
    download_rules=_download_rules,
    strategy="feddbp_server.strategies.fpl:FPLStrategy",
    trainer="feddbp_client.methods.fpl:FPL",
    up=LOCAL_PROTOTYPES,
    down=PayloadSize(
        content="cluster prototypes", formula="J(4d + 4), J from C to CK/2 clusters", size=_download_bytes
    ),
)
