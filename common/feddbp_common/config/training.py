"""The part of a run's configuration that is about local training."""

from __future__ import annotations

from typing import Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from feddbp_common.config.catalog import FEATURE_DIM, MODEL_GROUPS
from feddbp_common.config.identity import added_in
from feddbp_common.config.public_model import PublicModel
from feddbp_common.config.types import REFERENCE_MARK, UINT32_MAX, split_reference
from feddbp_common.errors import ConfigurationError

OPTIMIZERS: Final = ("sgd", "adamw")
_LONGEST_REFERENCE: Final = 200


class TrainingConfig(PublicModel):
    """Local training: one round on a client."""

    local_epochs: int = Field(10, ge=1, le=UINT32_MAX, description="passes over the local data per round")
    batch_size: int = Field(32, ge=2, le=UINT32_MAX, description="samples per step")
    learning_rate: float = Field(0.01, gt=0, description="step size of the optimiser")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of SGD; reset every round without --keep-optimizer")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty of SGD, decoupled weight decay of AdamW")
    model_group: str = Field("mini-8", description=f"architectures, assigned by client id: {', '.join(MODEL_GROUPS)}")
    feature_dim: int = Field(FEATURE_DIM, ge=2, le=65_535, description="width of features and prototypes")
    htfllib_loader: bool = Field(False, description="do not shuffle and drop the last partial batch, as HtFLlib does")
    augment: Literal["none", "flip", "flip-crop", "randaugment"] = Field(
        "none", description="random changes of training images", json_schema_extra=added_in("0.2.0")
    )
    transform: str = Field(
        "",
        max_length=_LONGEST_REFERENCE,
        description="a transform of one's own, package.module:function; see --allow-import of clients",
        json_schema_extra=added_in("0.2.0"),
    )
    optimizer: str = Field(
        "sgd",
        max_length=_LONGEST_REFERENCE,
        description="sgd, adamw, or package.module:function for your own; see --allow-import of clients",
        json_schema_extra=added_in("0.2.0"),
    )
    keep_optimizer: bool = Field(
        False,
        description="keep momentum and other state of the optimiser over rounds",
        json_schema_extra=added_in("0.2.0"),
    )
    schedule: Literal["constant", "cosine", "step"] = Field(
        "constant", description="learning rate over the whole run", json_schema_extra=added_in("0.2.0")
    )
    schedule_rounds: int = Field(
        30,
        ge=1,
        le=UINT32_MAX,
        description="rounds between two steps of --schedule step",
        json_schema_extra=added_in("0.2.0"),
    )
    schedule_factor: float = Field(
        0.1, gt=0, le=1, description="factor of a step of --schedule step", json_schema_extra=added_in("0.2.0")
    )
    clip_norm: float = Field(
        0.0, ge=0, description="largest norm of a step's gradient; 0 clips none", json_schema_extra=added_in("0.2.0")
    )
    label_smoothing: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of a label's weight that cross-entropy spreads over all classes",
        json_schema_extra=added_in("0.2.0"),
    )
    ema: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="decay of the averaged weights that are evaluated, such as 0.99; 0 averages none",
        json_schema_extra=added_in("0.2.0"),
    )
    init: Literal["own", "common"] = Field(
        "own",
        description="first weights of what all clients have in common (branches, heads): each its own, or the same",
        json_schema_extra=added_in("0.2.0"),
    )
    batch_remainder: Literal["auto", "keep", "merge", "drop"] = Field(
        "auto",
        description="last, smaller batch of an epoch: kept unless it is a single sample, merged into the one before if "
        "under half a batch, or dropped; auto merges for networks with batch norm and keeps for others",
        json_schema_extra=added_in("0.2.0"),
    )
    accumulate: bool = Field(
        False,
        description="clients whose device is out of memory compute a batch in chunks and its activations twice",
        json_schema_extra=added_in("0.2.0"),
    )
    validation: float = Field(
        0.0,
        ge=0,
        le=0.5,
        description="share of the training samples that is held out, to choose the best round on",
        json_schema_extra=added_in("0.2.0"),
    )

    @field_validator("transform")
    @classmethod
    def _is_reference(cls, reference: str) -> str:
        if reference:
            split_reference(reference, what="--transform")
        return reference

    @field_validator("model_group")
    @classmethod
    def _known_group(cls, name: str) -> str:
        if name not in MODEL_GROUPS:
            raise ConfigurationError(f"no model group is called {name!r}; there are: {', '.join(MODEL_GROUPS)}")
        return name

    @field_validator("optimizer")
    @classmethod
    def _known_optimizer(cls, name: str) -> str:
        if REFERENCE_MARK in name:
            split_reference(name, what="--optimizer")
        elif name not in OPTIMIZERS:
            raise ConfigurationError(
                f"no optimiser is called {name!r}; there are: {', '.join(OPTIMIZERS)}, or package.module:function"
            )
        return name

    @model_validator(mode="after")
    def _settings_have_an_effect(self) -> Self:
        if self.optimizer == "adamw" and self.momentum:
            raise ConfigurationError("momentum is a setting of sgd; adamw has its own")
        if self.htfllib_loader and self.batch_remainder not in ("auto", "drop"):
            raise ConfigurationError(f"htfllib_loader drops the last batch; batch_remainder is {self.batch_remainder}")
        return self
