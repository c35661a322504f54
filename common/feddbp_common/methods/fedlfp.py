"""FedLFP: prototypes without labels, clustered on the server.

The article was not available: formulas and defaults follow a secondary description and are unconfirmed.
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from feddbp_common.methods.contract import CollectingSettings, ExchangeShape, Method
from feddbp_common.methods.payload_size import REAL_BYTES, PayloadSize
from feddbp_common.wire import Dim, PayloadRules, TensorRule, WireType

LOCAL_PROTOTYPES: Final = "local_prototypes"
CONFIDENCE: Final = "confidence"
COUNTS: Final = "counts"
GLOBAL_PROTOTYPES: Final = "global_prototypes"

_ROUNDING: Final = 0.99
"""Margin below the smallest possible confidence, for the rounding of half precision."""


class FedLFPSettings(CollectingSettings):
    """Weights and temperatures of the loss, and the clustering."""

    lambda_contrast: float = Field(0.1, ge=0, description="weight of the two contrastive terms")
    tau: float = Field(0.2, gt=0, description="temperature of the contrast within the batch (unconfirmed)")
    distance: Literal["squared", "exponential"] = Field(
        "squared", description="from a feature to a global prototype: |a - b|^2, or exp(-rho a.b); both unconfirmed"
    )
    rho: float = Field(0.1, gt=0, description="factor of the exponential distance")
    clusters: int | None = Field(
        None, ge=1, le=65_535, description="number of global prototypes K'; none: the number of classes"
    )
    iterations: int = Field(25, ge=1, description="maximum iterations of the weighted K-means")
    unit_centroids: bool = Field(True, description="global prototypes are scaled to length one (unconfirmed)")


def cluster_count(settings: FedLFPSettings, shape: ExchangeShape) -> int:
    return shape.classes if settings.clusters is None else settings.clusters


def _upload_rules(_: FedLFPSettings, shape: ExchangeShape) -> PayloadRules:
    rows, width = Dim(1, shape.classes), Dim.exactly(shape.feature_dim)
    return PayloadRules(
        tensors=(
            TensorRule(name=LOCAL_PROTOTYPES, shape=(rows, width)),
            # the largest of C probabilities is at least 1 / C
            TensorRule(
                name=CONFIDENCE, shape=(rows,), low=_ROUNDING / shape.classes, high=1.0, rows_as=LOCAL_PROTOTYPES
            ),
            TensorRule(
                name=COUNTS, shape=(rows,), types=(WireType.INT32,), low=1, high=2**31 - 1, rows_as=LOCAL_PROTOTYPES
            ),
        )
    )


def _download_rules(settings: FedLFPSettings, shape: ExchangeShape) -> PayloadRules:
    rows, width = Dim.exactly(cluster_count(settings, shape)), Dim.exactly(shape.feature_dim)
    return PayloadRules(tensors=(TensorRule(name=GLOBAL_PROTOTYPES, shape=(rows, width), required=False),))


FEDLFP = Method(
    name="fedlfp",
    title="FedLFP",
    reference="IEEE Transactions on Mobile Computing, 2025",
    settings=FedLFPSettings,
    upload_rules=_upload_rules,
    download_rules=_download_rules,
    strategy="feddbp_server.strategies.fedlfp:FedLFPStrategy",
    trainer="feddbp_client.methods.fedlfp:FedLFP",
    loss_terms={
        "contrast": "sample contrast",
        "pull_samples": "prototype distance, by samples",
        "pull_classes": "prototype distance, by classes",
    },
    up=PayloadSize(
        content="unlabelled prototypes, confidences, counts",
        formula="m(4d + 8)",
        size=lambda _, shape, __: REAL_BYTES * shape.classes * (shape.feature_dim + 2),
    ),
    down=PayloadSize(
        content="cluster centres",
        formula="4K'd, K' clusters",
        size=lambda settings, shape, _: REAL_BYTES * cluster_count(settings, shape) * shape.feature_dim,
    ),
)
