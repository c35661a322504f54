"""FedMRL: clients combine the features of a small shared model and of their own by a projector."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pydantic import Field

from feddbp_common.errors import ConfigurationError
from feddbp_common.methods.contract import ExchangeShape, Method, MethodSettings, SumWeights, all_rules, always
from feddbp_common.methods.payload_size import ImageShape, PayloadSize
from feddbp_common.methods.small_model import small_model_bytes, small_model_rules
from feddbp_common.wire import PayloadRules


class FedMRLSettings(MethodSettings):
    """Settings with HtFLlib's values as defaults; descriptions give the authors' values where they differ."""

    small_dim: int = Field(
        128,
        ge=1,
        le=65_535,
        description="d_s: width of the shared model's features and of the coarse part of the joint representation; "
        "the whole width in the authors' code",
    )
    weighted: bool = Field(
        False, description="weight clients by training samples, as in the authors' code, instead of equally"
    )
    max_grad_norm: float = Field(
        0.0, ge=0, description="bound on the norm of the whole gradient, 50 in the authors' code; 0: no bound"
    )


def _upload_rules(settings: FedMRLSettings, shape: ExchangeShape) -> PayloadRules:
    if settings.small_dim > shape.feature_dim:
        raise ConfigurationError(f"small_dim is {settings.small_dim}, but features have only {shape.feature_dim}")
    return PayloadRules(tensors=small_model_rules(shape, feature_dim=settings.small_dim))


def _download_rules(settings: FedMRLSettings, shape: ExchangeShape) -> PayloadRules:
    rules = _upload_rules(settings, shape)
    return replace(rules, tensors=tuple(replace(rule, required=False) for rule in rules.tensors))


def _network_bytes(settings: FedMRLSettings, shape: ExchangeShape, image: ImageShape) -> int:
    return small_model_bytes(image, feature_dim=settings.small_dim, classes=shape.classes)


_PAYLOAD_SIZE: Final = PayloadSize(content="a small network", formula="4(body + C(small_dim + 1))", size=_network_bytes)
FEDMRL = Method(
    name="fedmrl",
    title="FedMRL",
    reference="Yi et al., NeurIPS 2024",
    settings=FedMRLSettings,
    equal_images=lambda _: "shape",
    upload_rules=_upload_rules,
    download_rules=_download_rules,
    strategy="feddbp_server.strategies.fedmrl:FedMRLStrategy",
    trainer="feddbp_client.methods.fedmrl:FedMRL",
    loss_terms={"ce": "cross-entropy, all channels", "ce_small": "cross-entropy, first channels"},
    exchanges_weights=always,
    aggregation_rules=all_rules,
    sum_weights=lambda settings: SumWeights(tensors_by_samples=settings.weighted),
    up=_PAYLOAD_SIZE,
    down=_PAYLOAD_SIZE,
)
