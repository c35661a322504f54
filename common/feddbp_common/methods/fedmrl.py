"""FedMRL: a small model that all clients share looks at images beside each client's own, and a projector joins both."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pydantic import Field

from feddbp_common.errors import ConfigurationError
from feddbp_common.methods.contract import ExchangeShape, Method, MethodSettings
from feddbp_common.methods.payload_size import ImageShape, PayloadSize
from feddbp_common.methods.small_model import small_model_bytes, small_model_rules
from feddbp_common.wire import PayloadRules


class FedMRLSettings(MethodSettings):
    """HtFLlib's values; where the authors' differ, the description says so."""

    small_dim: int = Field(
        128,
        ge=1,
        le=65_535,
        description="d_s: features of the shared model, and of the coarse part of the joint representation; the "
        "authors make it as wide as the whole",
    )
    weighted: bool = Field(
        False, description="clients count by their training samples, as with the authors, instead of all alike"
    )
    max_grad_norm: float = Field(
        0.0, ge=0, description="bound on the norm of the whole gradient, 50 with the authors; 0 is no bound"
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
    upload_rules=_upload_rules,
    download_rules=_download_rules,
    strategy="feddbp_server.strategies.fedmrl:FedMRLStrategy",
    trainer="feddbp_client.methods.fedmrl:FedMRL",
    up=_PAYLOAD_SIZE,
    down=_PAYLOAD_SIZE,
)
