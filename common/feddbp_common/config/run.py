"""The configuration of a run, which is the same for the server and all clients."""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import Any, Final, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.catalog import CUSTOM_DATASET, DATASETS, FEATURE_DIM, MODEL_GROUPS
from feddbp_common.config.diagnostics import FieldError, did_you_mean
from feddbp_common.config.identity import added_in, canonical
from feddbp_common.config.protobuf import to_message, values_in
from feddbp_common.config.references import MARK, split_reference
from feddbp_common.config.types import CommaSeparated, FrozenModel, split_at_commas
from feddbp_common.errors import ConfigurationError
from feddbp_common.methods import ExchangeShape, Method, MethodSettings, method_named, split_preset
from feddbp_common.methods.guide_network import GUIDES
from feddbp_common.wire import WireType

MAX_CLIENTS: Final = 100_000
MAX_CLASSES: Final = 65_536
_UINT32_MAX: Final = 2**32 - 1
"""Largest value of the protocol's integer fields."""
_MAX_IMAGE_SIZE: Final = 1024
_LONGEST_REFERENCE: Final = 200
_PLANNED: Final = added_in("0.2.0", planned=True)
OPTIMIZERS: Final = ("sgd", "adamw")
_LONGEST_FAULT: Final = 500
"""Bounds what a server can put into a client's log; our own messages are shorter."""


class FisherForm(StrEnum):
    """How Fisher scores are sent."""

    SCORES = "scores"
    TOP_CHANNELS = "top_channels"


class RealType(StrEnum):
    """Element type of real-valued tensors on the wire."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class DataConfig(FrozenModel):
    """Data: the data set and how it is split over clients."""

    dataset: str = Field("digits", description=f"{', '.join(DATASETS)}, or {CUSTOM_DATASET} (each client has its own)")
    alpha: float = Field(0.1, gt=0, description="concentration of the Dirichlet split; smaller is more uneven")
    classes: int | None = Field(
        None, ge=2, le=MAX_CLASSES, description=f"number of classes of a {CUSTOM_DATASET} data set"
    )
    class_names: CommaSeparated = Field((), description="class names in the order of class ids, comma-separated")
    image_size: int | None = Field(
        None,
        ge=1,
        le=_MAX_IMAGE_SIZE,
        description=f"side in pixels to scale images to (default: as published; for {CUSTOM_DATASET} the client's own)",
        json_schema_extra={"zero_is_none": True},
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in_catalog_values(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        given = {name: value for name, value in values.items() if value is not None}
        known = DATASETS.get(str(values.get("dataset", "digits")))
        if known is not None:
            return {"classes": known.classes, "image_size": known.image_size, **given}
        names = values.get("class_names")
        return {"classes": len(split_at_commas(names)), **given} if names else values

    @model_validator(mode="after")
    def _classes_agree(self) -> Self:
        known = DATASETS.get(self.dataset)
        if known is None and self.dataset != CUSTOM_DATASET:
            raise ConfigurationError(
                f"no data set is called {self.dataset!r}; there are: {', '.join((*DATASETS, CUSTOM_DATASET))}"
            )
        if self.classes is None:
            raise ConfigurationError("a custom data set needs --classes or --class-names")
        if known is not None and self.classes != known.classes:
            raise ConfigurationError(f"{self.dataset} has {known.classes} classes, not {self.classes}")
        if self.class_names and len(self.class_names) != self.classes:
            raise ConfigurationError(f"{len(self.class_names)} class names for {self.classes} classes")
        if len(set(self.class_names)) != len(self.class_names):
            raise ConfigurationError("a class name is given twice")
        return self

    @property
    def channels(self) -> int | None:
        """Channels of the images; None for custom data, where clients may differ."""
        known = DATASETS.get(self.dataset)
        return None if known is None else known.channels


class TrainingConfig(FrozenModel):
    """Local training: one round on a client."""

    local_epochs: int = Field(10, ge=1, le=_UINT32_MAX, description="passes over the local data per round")
    batch_size: int = Field(32, ge=2, le=_UINT32_MAX, description="samples per step")
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
        le=_UINT32_MAX,
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
        if MARK in name:
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


class WireConfig(FrozenModel):
    """Wire: the form in which tensors are sent."""

    wire_dtype: RealType = Field(
        RealType.FLOAT32, description="element type of real tensors on the wire", json_schema_extra={"proto": "dtype"}
    )
    fisher: FisherForm = Field(
        FisherForm.SCORES, description="send all Fisher scores, or only the indices of the top channels"
    )


class AggregationConfig(FrozenModel):
    """Aggregation: how the server combines what clients upload."""

    rule: Literal["mean", "median", "trimmed_mean", "clipped"] = Field(
        "mean", description="rule by which uploads are combined", json_schema_extra=_PLANNED | {"flag": "--aggregation"}
    )
    trim: float = Field(
        0.1, gt=0, lt=0.5, description="share left out at either end by trimmed_mean", json_schema_extra=_PLANNED
    )
    clip_factor: float = Field(
        3.0, ge=1, description="largest norm under clipped, as a multiple of the median", json_schema_extra=_PLANNED
    )


class PrivacyConfig(FrozenModel):
    """Privacy: what the server gets to see of a client's upload."""

    fusion: Literal["server", "client"] = Field(
        "server",
        description="where a client's own prototypes are fused with the global ones",
        json_schema_extra=_PLANNED,
    )
    secure_sums: bool = Field(False, description="the server sees only sums over clients", json_schema_extra=_PLANNED)
    noise_multiplier: float = Field(
        0.0, ge=0, description="Gaussian noise on uploads, as a multiple of clip_bound", json_schema_extra=_PLANNED
    )
    clip_bound: float = Field(
        1.0, gt=0, description="norm to which uploads are clipped before noise", json_schema_extra=_PLANNED
    )
    min_class_samples: int = Field(
        0,
        ge=0,
        le=_UINT32_MAX,
        description="classes of which a client has fewer samples are not uploaded",
        json_schema_extra=_PLANNED,
    )


class GuideConfig(FrozenModel):
    """Guide: a small network that all clients have in common."""

    network: str = Field(
        "guide_large",
        description=f"for methods that exchange one: {', '.join(GUIDES)}",
        json_schema_extra={"flag": "--guide"},
    )
    interval: int = Field(
        1,
        ge=1,
        le=_UINT32_MAX,
        description="rounds between two exchanges of the guide",
        json_schema_extra=_PLANNED | {"flag": "--guide-interval"},
    )

    @field_validator("network")
    @classmethod
    def _known_guide(cls, name: str) -> str:
        if name not in GUIDES:
            raise ConfigurationError(f"no guide is called {name!r}; there are: {', '.join(GUIDES)}")
        return name


class Sources(StrEnum):
    """Whose uploads of a round go into what a client receives after it."""

    ALL = "all"
    FINISHED = "finished"
    """Its own, and the last one of every client that has finished: what a newcomer receives."""
    OWN = "own"


class RunConfig(FrozenModel):
    """Run: settings that are the same for all clients."""

    method: str = Field("feddbp", description="name of the method, or NAME:PRESET; see `feddbp methods`")
    method_settings: dict[str, Any] = Field(
        {}, description="a setting of the method; repeatable", json_schema_extra={"flag": "--set"}
    )
    clients: int = Field(
        20, ge=1, le=MAX_CLIENTS, description="number of clients, with ids 0 to N-1, and of data shards"
    )
    rounds: int = Field(100, ge=1, le=_UINT32_MAX, description="rounds of training")
    participation: float = Field(1.0, gt=0, le=1, description="fraction of the clients selected in each round")
    seed: int = Field(0, ge=0, lt=2**32, description="seed of every random choice")
    exchange: Literal["on", "off"] = Field(
        "on",
        description="off trains the same networks with the same losses, but each client gets the result of its own "
        "upload alone",
        json_schema_extra=added_in("0.2.0"),
    )
    finetune_rounds: int = Field(
        0,
        ge=0,
        le=_UINT32_MAX,
        description="last rounds of the run, in which each client goes on from the result of its own upload alone",
        json_schema_extra=added_in("0.2.0"),
    )
    newcomers: int = Field(
        0,
        ge=0,
        le=MAX_CLIENTS,
        description="clients, those with the highest ids, that join when the others have finished",
        json_schema_extra=added_in("0.2.0"),
    )
    newcomer_rounds: int = Field(
        0,
        ge=0,
        le=_UINT32_MAX,
        description="last rounds of the run, in which newcomers alone train",
        json_schema_extra=added_in("0.2.0"),
    )
    newcomer_samples: int = Field(
        0,
        ge=0,
        le=_UINT32_MAX,
        description="training samples that a newcomer keeps of its shard; 0 keeps all",
        json_schema_extra=added_in("0.2.0"),
    )
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    wire: WireConfig = WireConfig()
    aggregation: AggregationConfig = Field(AggregationConfig(), json_schema_extra=added_in("0.2.0"))
    privacy: PrivacyConfig = Field(PrivacyConfig(), json_schema_extra=added_in("0.2.0"))
    guide: GuideConfig = Field(GuideConfig(), json_schema_extra=added_in("0.2.0"))

    @model_validator(mode="before")
    @classmethod
    def _unfold_preset(cls, values: Any) -> Any:
        # a preset is stored as its settings, so that the same settings give the same run either way
        if not isinstance(values, dict) or not isinstance(values.get("method"), str):
            return values
        method, settings = split_preset(values["method"])
        given = values.get("method_settings", {})
        if not settings or not isinstance(given, dict):
            return {**values, "method": method}
        return {**values, "method": method, "method_settings": {**settings, **given}}

    @model_validator(mode="after")
    def _settings_fit_method(self) -> Self:
        # all settings are stored, so that a stored run does not depend on the defaults of this version
        resolved = resolve_settings(method_named(self.method), self.method_settings)
        object.__setattr__(self, "method_settings", canonical(resolved))
        self.method_spec.upload_rules(resolved, self.exchange_shape)
        return self

    @model_validator(mode="after")
    def _heads_fit_method(self) -> Self:
        heads = set(MODEL_GROUPS[self.training.model_group].heads)
        if self.method_spec.needs_equal_heads and heads != {"linear"}:
            raise ConfigurationError(
                f"{self.method} shares one linear head among all clients, but those of model group "
                f"{self.training.model_group} differ: {', '.join(sorted(heads))}"
            )
        return self

    @model_validator(mode="after")
    def _uploads_suffice_without_exchange(self) -> Self:
        if self.finetune_rounds >= self.rounds and self.finetune_rounds:
            raise ConfigurationError(f"finetune_rounds is {self.finetune_rounds}, but the run has {self.rounds} rounds")
        alone = self.exchange == "off" or self.finetune_rounds > 0 or self.newcomers > 0
        if alone and self.method_spec.has_history(self.settings):
            raise ConfigurationError(
                f"{self.method} has no rounds without exchange: its server keeps a state that no single upload gives"
            )
        return self

    @model_validator(mode="after")
    def _newcomers_fit(self) -> Self:
        if bool(self.newcomers) != bool(self.newcomer_rounds):
            raise ConfigurationError("newcomers need both a number of them and rounds of their own")
        if self.newcomer_samples and not self.newcomers:
            raise ConfigurationError("newcomer_samples is given, but the run has no newcomers")
        if not self.newcomers:
            return self
        if self.newcomers >= self.clients:
            raise ConfigurationError(f"{self.newcomers} of {self.clients} clients are newcomers; some must not be")
        if self.newcomer_rounds >= self.rounds:
            raise ConfigurationError(f"newcomer_rounds is {self.newcomer_rounds}, but the run has {self.rounds} rounds")
        if self.finetune_rounds >= self.newcomer_rounds:
            raise ConfigurationError(
                f"newcomer_rounds is {self.newcomer_rounds} and finetune_rounds {self.finetune_rounds}: "
                "no round is left in which newcomers receive anything"
            )
        return self

    def exchanges_in(self, round_number: int) -> bool:
        """Whether the uploads of a round go into the global state."""
        return self.exchange == "on" and round_number < self.rounds - max(self.finetune_rounds, self.newcomer_rounds)

    def sources_of(self, client_id: int, round_number: int) -> Sources:
        """Whose uploads of a round go into what a client receives after it."""
        if self.exchange == "off":
            return Sources.OWN
        is_fine_tuning = round_number >= self.rounds - self.finetune_rounds
        if not self.newcomers:
            return Sources.OWN if is_fine_tuning else Sources.ALL
        if not self.is_newcomer(client_id) or round_number not in self.rounds_of(client_id):
            return Sources.ALL
        return Sources.OWN if is_fine_tuning else Sources.FINISHED

    def is_newcomer(self, client_id: int) -> bool:
        return client_id >= self.clients - self.newcomers

    def clients_in(self, round_number: int) -> int:
        """How many clients train or evaluate in a round; all evaluate after the last."""
        if not self.newcomers or round_number >= self.rounds:
            return self.clients
        return self.newcomers if round_number >= self.rounds - self.newcomer_rounds else self.clients - self.newcomers

    def rounds_of(self, client_id: int) -> range:
        """The rounds in which a client may train."""
        joined = self.rounds - self.newcomer_rounds
        return range(joined, self.rounds) if self.is_newcomer(client_id) else range(joined)

    @property
    def method_spec(self) -> Method:
        return method_named(self.method)

    @property
    def settings(self) -> MethodSettings:
        return resolve_settings(self.method_spec, self.method_settings)

    @property
    def classes(self) -> int:
        assert self.data.classes is not None
        return self.data.classes

    @property
    def exchange_shape(self) -> ExchangeShape:
        return ExchangeShape(
            classes=self.classes,
            feature_dim=self.training.feature_dim,
            clients=self.clients,
            image_size=self.data.image_size,
            channels=self.data.channels,
            top_channels_only=self.wire.fisher is FisherForm.TOP_CHANNELS,
            guide=self.guide.network,
        )

    def architecture_of(self, client_id: int) -> str:
        """The client's architecture unless it brings its own: that of its model group, or the one common to all."""
        if self.method_spec.common_architecture:
            return self.guide.network
        return MODEL_GROUPS[self.training.model_group].body_of(client_id)

    @property
    def imports(self) -> tuple[str, ...]:
        """Modules of the functions that the run names, sorted: every client has to allow their import."""
        named = (self.training.transform, self.training.optimizer)
        return tuple(sorted({name.partition(MARK)[0] for name in named if MARK in name}))

    @property
    def wire_type(self) -> WireType:
        return WireType(self.wire.wire_dtype.value)

    def canonical_json(self) -> str:
        """What the run means, as text: the same for every version that has its settings."""
        return json.dumps(canonical(self), sort_keys=True)

    @property
    def fingerprint(self) -> str:
        """Identifies the configuration by its content."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()[:8]


def resolve_settings(method: Method, given: dict[str, Any]) -> MethodSettings:
    """Validates a method's settings and fills in defaults; errors suggest a setting of a similar name."""
    try:
        return method.settings.model_validate(given)
    except ValidationError as error:
        first = FieldError.first_in(error)
        if first.kind == "extra_forbidden":
            known = method.settings.model_fields
            raise ConfigurationError(
                f"{method.name} has no setting {first.path!r}{did_you_mean(first.path, known)} "
                f"(it has: {', '.join(known) or 'none'})"
            ) from None
        raise ConfigurationError(f"setting {first.path!r} of {method.name}: {first.clause}") from None


def run_to_proto(run: RunConfig) -> pb.RunConfig:
    return to_message(run, pb.RunConfig)


def run_from_proto(message: pb.RunConfig) -> RunConfig:
    """Reads a run configuration received from a server; refuses anything this version does not know.

    Raises:
        ConfigurationError: one line that names the field at fault.
    """
    try:
        return RunConfig.model_validate(values_in(message, RunConfig))
    except ValidationError as error:
        fault = str(FieldError.first_in(error))
    except ConfigurationError as error:
        fault = str(error)
    raise ConfigurationError(f"the server's run configuration cannot be used: {fault[:_LONGEST_FAULT]}")
