"""FPL: several prototypes per class, one for each cluster of clients, and their mean.

The paper averages model weights as well; with different architectures only prototypes are exchanged.
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from feddbp_common.methods.contract import CollectingSettings, ExchangeShape, Method
from feddbp_common.methods.fedproto import AlignmentDistance, prototypes_up
from feddbp_common.methods.payload_size import LOCAL_PROTOTYPES, REAL_BYTES, ImageShape, PayloadSize
from feddbp_common.wire import Dim, PayloadRules, TensorRule, WireType

CLUSTER_PROTOTYPES: Final = "cluster_prototypes"
"""float32 [rows, d], ordered by class."""
CLUSTER_CLASSES: Final = "cluster_classes"
"""int32 [rows], the class of each row."""


class FPLSettings(CollectingSettings):
    """The temperature, and options where paper and published code differ."""

    tau: float = Field(0.02, gt=0, description="temperature of the contrastive loss with cluster prototypes")
    distance: AlignmentDistance = Field(
        "mse", description="distance of a feature to the unbiased prototype; mse as in the published code"
    )
    inference: Literal["head", "prototype"] = Field(
        "head",
        description="inference rule of the reported accuracy; both are recorded. The original evaluates the head of "
        "an averaged model; the rule of FedDBP's comparison is unconfirmed",
    )


def _most_clusters(shape: ExchangeShape) -> int:
    """Returns the maximum: every cluster has at least two vectors unless there is only one."""
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
    loss_terms={"cpcl": "cluster prototype contrast", "upcr": "mean prototype distance"},
    up=LOCAL_PROTOTYPES,
    down=PayloadSize(
        content="cluster prototypes", formula="J(4d + 4), J from C to CK/2 clusters", size=_download_bytes
    ),
)
