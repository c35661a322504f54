"""FedGen: the server trains a generator of features with the clients' heads; clients train heads on its output."""

from __future__ import annotations

from math import prod
from typing import Final, Self

from pydantic import Field, model_validator

from feddbp_common.methods.contract import ALL_RULES, CLIPPING_RULES, ExchangeShape, Method, MethodSettings, always
from feddbp_common.methods.linear_head import HEAD_PAYLOAD_SIZE, head_bytes, head_rules
from feddbp_common.methods.payload_size import REAL_BYTES, ImageShape, PayloadSize
from feddbp_common.wire import Dim, PayloadRules, TensorRule, WireType

HIDDEN_WEIGHT: Final = "generator.hidden.weight"
HIDDEN_BIAS: Final = "generator.hidden.bias"
NORM_WEIGHT: Final = "generator.norm.weight"
NORM_BIAS: Final = "generator.norm.bias"
NORM_MEAN: Final = "generator.norm.running_mean"
NORM_VARIANCE: Final = "generator.norm.running_var"
OUTPUT_WEIGHT: Final = "generator.output.weight"
OUTPUT_BIAS: Final = "generator.output.bias"
GENERATOR: Final = (
    HIDDEN_WEIGHT,
    HIDDEN_BIAS,
    NORM_WEIGHT,
    NORM_BIAS,
    NORM_MEAN,
    NORM_VARIANCE,
    OUTPUT_WEIGHT,
    OUTPUT_BIAS,
)
"""Tensors of the generator, Linear -> BatchNorm -> ReLU -> Linear, in the order of the payload."""
LABEL_COUNTS: Final = "label_counts"
"""Training samples per class over the generator's clients; labels are drawn in proportion to them."""

NORM_EPSILON: Final = 1e-5
"""Added to variances in the normalisation, on server and clients."""

_VARIANCE_BOUND: Final = 1e12
"""The square of the bound on other values, because a variance is a mean of squares."""


class FedGenSettings(MethodSettings):
    """The generator, its training on the server, and the terms of the full method."""

    noise_dim: int = Field(
        32, ge=1, le=65_535, description="width q of the noise; 32 as in HtFLlib's script, elsewhere 512 (unconfirmed)"
    )
    hidden_dim: int = Field(512, ge=1, le=65_535, description="width of the generator's hidden layer")
    server_learning_rate: float = Field(
        0.005,
        gt=0,
        description="step size of Adam on the server; HtFLlib's default (the 0.1 of its script never reaches a client "
        "there, and undoes their training here); 0.0003 with full unless given, as in the authors' settings",
    )
    server_steps: int = Field(100, ge=1, description="steps S of the generator per round")
    server_batch_size: int = Field(32, ge=2, description="labels per step of the generator")
    keep_adam: bool = Field(False, description="keep the state of the server's Adam between rounds")
    full: bool = Field(
        False,
        description="the authors' additional terms: clients weighted per label, a diversity term, and a distance "
        "between outputs of real samples and of generated features",
    )
    alpha: float = Field(10.0, ge=0, description="with full: weight of the loss on generated features")
    beta: float = Field(10.0, ge=0, description="with full: weight of the distance of real samples' outputs")
    decay: float = Field(0.98, gt=0, le=1, description="with full: factor on alpha and beta per round")

    @model_validator(mode="after")
    def _lower_learning_rate_with_full(self) -> Self:
        # an unstable generator, weighted by ten, would outweigh the clients' own data
        if self.full and "server_learning_rate" not in self.model_fields_set:
            object.__setattr__(self, "server_learning_rate", 0.0003)
        return self


def generator_shapes(settings: FedGenSettings, shape: ExchangeShape) -> dict[str, tuple[int, ...]]:
    hidden = settings.hidden_dim
    return {
        HIDDEN_WEIGHT: (hidden, settings.noise_dim + shape.classes),
        HIDDEN_BIAS: (hidden,),
        NORM_WEIGHT: (hidden,),
        NORM_BIAS: (hidden,),
        NORM_MEAN: (hidden,),
        NORM_VARIANCE: (hidden,),
        OUTPUT_WEIGHT: (shape.feature_dim, hidden),
        OUTPUT_BIAS: (shape.feature_dim,),
    }


def _upload_rules(_: FedGenSettings, shape: ExchangeShape) -> PayloadRules:
    return PayloadRules(tensors=head_rules(shape))


def _download_rules(settings: FedGenSettings, shape: ExchangeShape) -> PayloadRules:
    # no generator exists before the first round has closed
    counts = TensorRule(
        name=LABEL_COUNTS,
        shape=(Dim.exactly(shape.classes),),
        types=(WireType.INT32,),
        required=False,
        low=0,
        high=2**31 - 1,
    )
    generator = tuple(_generator_rule(name, sizes) for name, sizes in generator_shapes(settings, shape).items())
    return PayloadRules(tensors=(*head_rules(shape), *generator, counts))


def _generator_rule(name: str, sizes: tuple[int, ...]) -> TensorRule:
    dimensions = tuple(map(Dim.exactly, sizes))
    if name == NORM_VARIANCE:
        return TensorRule(name=name, shape=dimensions, required=False, low=0, high=_VARIANCE_BOUND)
    return TensorRule(name=name, shape=dimensions, required=False)


def _download_bytes(settings: FedGenSettings, shape: ExchangeShape, image: ImageShape) -> int:
    generator = sum(prod(sizes) for sizes in generator_shapes(settings, shape).values())
    return head_bytes(settings, shape, image) + REAL_BYTES * (generator + shape.classes)


FEDGEN = Method(
    name="fedgen",
    title="FedGen",
    reference="Zhu et al., ICML 2021",
    settings=FedGenSettings,
    upload_rules=_upload_rules,
    download_rules=_download_rules,
    strategy="feddbp_server.strategies.fedgen:FedGenStrategy",
    trainer="feddbp_client.methods.fedgen:FedGen",
    loss_terms={"generated": "cross-entropy, generated features", "latent": "divergence from generated features"},
    exchanges_weights=always,
    aggregation_rules=lambda settings: CLIPPING_RULES if settings.full else ALL_RULES,
    has_history=always,
    up=HEAD_PAYLOAD_SIZE,
    down=PayloadSize(
        content="the head, the generator, label counts",
        formula="4C(d + 1) + generator + 4C",
        size=_download_bytes,
    ),
    needs_equal_heads=True,
)
