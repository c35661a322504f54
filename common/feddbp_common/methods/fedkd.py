"""FedKD: each client's model and a small shared model distil each other; only the small one is exchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from pydantic import Field

from feddbp_common.methods.contract import (
    ExchangeShape,
    Expansion,
    Method,
    MethodSettings,
    SumWeights,
    all_rules,
    always,
)
from feddbp_common.methods.payload_size import ImageShape, PayloadSize
from feddbp_common.methods.small_model import small_model_bytes, small_model_rules
from feddbp_common.wire import Dim, Payload, PayloadRules, TensorRule, WireType
from feddbp_common.wire.payload import AnyArray
from feddbp_common.wire.svd import compressed_rules, decompress

ROUND: Final = "round"
"""With `target = update`: number of completed rounds of the shared model that the payload starts from or leads to."""
TOTAL: Final = "total."
"""Prefix of the total change of the shared model since its initial weights."""


class FedKDSettings(MethodSettings):
    """Settings with HtFLlib's values as defaults."""

    energy_start: float = Field(
        0.95, gt=0, le=1, description="fraction of a weight's squared norm that its factors keep, in the first round"
    )
    energy_end: float = Field(0.98, gt=0, le=1, description="the same in the last round; linear in between")
    target: Literal["params", "update"] = Field(
        "params",
        description="what is compressed: the shared model's weights, as in HtFLlib, or their change in a round, as in "
        "the authors' code",
    )
    mentee_learning_rate: float | None = Field(
        None, gt=0, description="step size of the shared model; none: the run's learning rate"
    )
    max_grad_norm: float = Field(
        10.0, gt=0, description="bound on each gradient norm: of the own model, the shared model and W"
    )

    def energy(self, round_number: int, rounds: int) -> float:
        """Returns T(t), the energy kept in round t."""
        return self.energy_start + round_number / rounds * (self.energy_end - self.energy_start)


def _mentee(shape: ExchangeShape) -> tuple[TensorRule, ...]:
    return small_model_rules(shape, feature_dim=shape.feature_dim)


def _round(*, required: bool) -> TensorRule:
    return TensorRule(
        name=ROUND, shape=(Dim.exactly(1),), types=(WireType.INT32,), required=required, low=0, high=2**31 - 1
    )


def _upload_rules(settings: FedKDSettings, shape: ExchangeShape) -> PayloadRules:
    either_form = compressed_rules(_mentee(shape))
    return PayloadRules(tensors=either_form if settings.target == "params" else (_round(required=True), *either_form))


def _download_rules(settings: FedKDSettings, shape: ExchangeShape) -> PayloadRules:
    either_form = compressed_rules(_mentee(shape))
    if settings.target == "params":
        return PayloadRules(tensors=either_form)
    totals = (replace(rule, name=TOTAL + rule.name, required=False) for rule in _mentee(shape))
    return PayloadRules(tensors=(_round(required=False), *either_form, *totals))


def expanded(payload: Payload) -> Payload:
    """An upload with its matrices multiplied out."""
    kept = {name: tensor for name, tensor in payload.tensors.items() if name == ROUND}
    return Payload(tensors={**kept, **decompress(weights_of(payload))})


def weights_of(payload: Payload) -> dict[str, AnyArray]:
    """The network in a payload, compressed or not."""
    return {name: tensor for name, tensor in payload.tensors.items() if name != ROUND}


def _expanded_rules(_: FedKDSettings, shape: ExchangeShape) -> PayloadRules:
    return PayloadRules(tensors=_mentee(shape))


def _dense_bytes(_: FedKDSettings, shape: ExchangeShape, image: ImageShape) -> int:
    return small_model_bytes(image, feature_dim=shape.feature_dim, classes=shape.classes)


_PAYLOAD_SIZE: Final = PayloadSize(
    content="a small network, compressed", formula="at most 4(body + C(d + 1))", size=_dense_bytes
)
FEDKD = Method(
    name="fedkd",
    title="FedKD",
    reference="Wu et al., Nature Communications 2022",
    settings=FedKDSettings,
    equal_images=lambda _: "shape",
    upload_rules=_upload_rules,
    download_rules=_download_rules,
    strategy="feddbp_server.strategies.fedkd:FedKDStrategy",
    trainer="feddbp_client.methods.fedkd:FedKD",
    loss_terms={
        "ce_mentor": "cross-entropy, own network",
        "ce_mentee": "cross-entropy, common network",
        "kl": "divergence of the two networks",
        "features": "distance of their features",
    },
    exchanges_weights=always,
    aggregation_rules=all_rules,
    sum_weights=lambda settings: SumWeights() if settings.target == "params" else None,
    expansion=Expansion(expanded, _expanded_rules),
    has_history=lambda settings: settings.target == "update",
    up=_PAYLOAD_SIZE,
    down=_PAYLOAD_SIZE,
)
