"""FD, federated distillation: clients exchange mean logits per class."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from feddbp_common.methods.contract import ALL_RULES, CollectingSettings, ExchangeShape, Method, SumWeights
from feddbp_common.methods.payload_size import REAL_BYTES, ImageShape, PayloadSize
from feddbp_common.wire import PayloadRules, PrototypeRule


class FDSettings(CollectingSettings):
    """The weight of distillation, and its target, which the paper leaves open."""

    gamma: float = Field(1.0, ge=0, description="weight of the distillation term")
    target: Literal["softmax_of_mean", "mean_of_softmax", "raw_logits"] = Field(
        "softmax_of_mean",
        description="what is distilled: softmax of the mean logits; mean of the softmax outputs, possibly the paper's "
        "meaning (unconfirmed); or mean logits used as probabilities, to compare with other code",
    )
    leave_one_out: bool = Field(
        False, description="a client receives the mean over the other clients only (unconfirmed reading of the paper)"
    )


def _logits(shape: ExchangeShape) -> PrototypeRule:
    """Returns the rule for one row of logits or probabilities per class."""
    return PrototypeRule(classes=shape.classes, width=shape.classes)


def _upload_rules(_: FDSettings, shape: ExchangeShape) -> PayloadRules:
    return PayloadRules(prototypes=_logits(shape))


def _download_rules(_: FDSettings, shape: ExchangeShape) -> PayloadRules:
    return PayloadRules(prototypes=_logits(shape), prototypes_required=False)


def _logit_bytes(_: FDSettings, shape: ExchangeShape, __: ImageShape) -> int:
    return REAL_BYTES * shape.classes**2


FD = Method(
    name="fd",
    title="FD",
    reference="Jeong et al., 2018 (arXiv 1811.11479)",
    settings=FDSettings,
    upload_rules=_upload_rules,
    download_rules=_download_rules,
    strategy="feddbp_server.strategies.fd:FDStrategy",
    trainer="feddbp_client.methods.fd:FD",
    loss_terms={"distillation": "cross-entropy with class averages"},
    aggregation_rules=lambda settings: ("mean",) if settings.leave_one_out else ALL_RULES,
    subtracts_own_upload=lambda settings: settings.leave_one_out,
    sum_weights=lambda settings: None if settings.leave_one_out else SumWeights(),
    up=PayloadSize(content="mean logits", formula="4mC", size=_logit_bytes),
    down=PayloadSize(content="mean logits", formula="4CC", size=_logit_bytes),
)
