"""Frozen features: all clients have one fixed network, and exchange class sums of its features."""

from __future__ import annotations

import re
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from feddbp_common.errors import ConfigurationError
from feddbp_common.methods.contract import ExchangeShape, Method, MethodSettings, SumWeights
from feddbp_common.methods.payload_size import REAL_BYTES, ImageShape, PayloadSize
from feddbp_common.wire import Dim, PayloadRules, PrototypeRule, TensorRule

RANDOM_NETWORK: Final = "random_features"
SUMS: Final = "class_sums"
COUNTS: Final = "class_counts"
NOISE: Final = "noise"
"""Of each class, the squared length that noise is expected to add to its prototype."""
_LARGEST: Final = 1e9


class FrozenSettings(MethodSettings):
    """The network, and how its features predict."""

    network: str = Field(
        RANDOM_NETWORK,
        description=f"{RANDOM_NETWORK}, drawn from the run's seed, or an architecture with weights from a file",
    )
    weights_sha256: str = Field(
        "", description="SHA-256 of the file with the network's weights, which every client gives by --frozen-weights"
    )
    inference: Literal["prototype", "head"] = Field(
        "prototype",
        description="inference rule of the reported accuracy: the nearest global class mean, or the client's own "
        "head, which never leaves it",
    )

    @model_validator(mode="after")
    def _has_weights(self) -> Self:
        if self.weights_sha256 and not re.fullmatch("[0-9a-f]{64}", self.weights_sha256):
            raise ConfigurationError("weights_sha256 is not a SHA-256: 64 digits in lower case, as sha256sum prints it")
        if (self.network == RANDOM_NETWORK) == bool(self.weights_sha256):
            raise ConfigurationError(
                f"network {self.network}: "
                + (
                    "its weights are drawn; leave out weights_sha256"
                    if self.weights_sha256
                    else "give the SHA-256 of the file with its weights, as weights_sha256"
                )
            )
        return self


def _upload_rules(_: FrozenSettings, shape: ExchangeShape) -> PayloadRules:
    classes, width = Dim.exactly(shape.classes), Dim.exactly(shape.feature_dim)
    return PayloadRules(
        tensors=(
            TensorRule(name=SUMS, shape=(classes, width), low=-_LARGEST, high=_LARGEST),
            TensorRule(name=COUNTS, shape=(classes,), low=-_LARGEST, high=_LARGEST),
        )
    )


def _download_rules(_: FrozenSettings, shape: ExchangeShape) -> PayloadRules:
    return PayloadRules(
        prototypes=PrototypeRule(classes=shape.classes, width=shape.feature_dim),
        prototypes_required=False,
        tensors=(TensorRule(name=NOISE, shape=(Dim.exactly(shape.classes),), required=False, low=0.0),),
    )


def _upload_bytes(_: FrozenSettings, shape: ExchangeShape, __: ImageShape) -> int:
    return REAL_BYTES * shape.classes * (shape.feature_dim + 1)


FROZEN = Method(
    name="frozen",
    title="Frozen features",
    reference="nearest class mean in the features of a fixed network",
    settings=FrozenSettings,
    upload_rules=_upload_rules,
    download_rules=_download_rules,
    strategy="feddbp_server.strategies.frozen:FrozenStrategy",
    trainer="feddbp_client.methods.frozen:Frozen",
    aggregation_rules=lambda _: ("mean",),
    sum_weights=lambda _: SumWeights(),
    up=PayloadSize(content="class sums and counts", formula="4C(d + 1)", size=_upload_bytes),
    down=PayloadSize(content="prototypes", formula="4C(d + 1)", size=_upload_bytes),
    equal_images=lambda _: "shape",
    fixed_network=lambda settings: str(settings.network),
)
