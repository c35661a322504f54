"""The configuration of a run, which is the same for the server and all clients."""

from __future__ import annotations

import hashlib
import json
import math
from enum import StrEnum
from typing import Any, Final, Literal, Self

from pydantic import Field, ValidationError, model_validator

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.catalog import MODEL_GROUPS
from feddbp_common.config.data import DataConfig
from feddbp_common.config.diagnostics import FieldError, did_you_mean
from feddbp_common.config.exchange import AggregationConfig, FisherForm, GuideConfig, PrivacyConfig, WireConfig
from feddbp_common.config.identity import added_in, canonical
from feddbp_common.config.nested import Location
from feddbp_common.config.privacy_rules import (
    check_noise,
    check_preset,
    check_samples_private,
    check_secure_release,
    check_sums,
    unfold_privacy,
)
from feddbp_common.config.protobuf import to_message, values_in
from feddbp_common.config.public_model import PublicModel
from feddbp_common.config.round_rules import check_last_state, check_newcomers, check_own_state, check_stopping
from feddbp_common.config.training import TrainingConfig
from feddbp_common.config.types import REFERENCE_MARK, UINT32_MAX
from feddbp_common.errors import ConfigurationError
from feddbp_common.methods import ExchangeShape, Method, MethodSettings, method_named, split_preset
from feddbp_common.methods.sums import sum_rules, with_holders
from feddbp_common.secure_sums import MIN_CLIENTS, threshold_of
from feddbp_common.wire import PayloadRules, WireType

MAX_CLIENTS: Final = 100_000
_LONGEST_FAULT: Final = 500
"""Bounds what a server can put into a client's log; our own messages are shorter."""


class Sources(StrEnum):
    """Whose uploads of a round go into what a client receives after it."""

    ALL = "all"
    FINISHED = "finished"
    """Its own, and the last one of every client that has finished: what a newcomer receives."""
    OWN = "own"


class RunConfig(PublicModel):
    """Run: settings that are the same for all clients."""

    method: str = Field("feddbp", description="name of the method, or NAME:PRESET; see `feddbp methods`")
    method_settings: dict[str, Any] = Field(
        {}, description="a setting of the method; repeatable", json_schema_extra={"flag": "--set"}
    )
    clients: int = Field(
        20, ge=1, le=MAX_CLIENTS, description="number of clients, with ids 0 to N-1, and of data shards"
    )
    rounds: int = Field(100, ge=1, le=UINT32_MAX, description="rounds of training")
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
        le=UINT32_MAX,
        description="last rounds of the run, without exchange; see --finetune-state for what clients have in them",
        json_schema_extra=added_in("0.2.0"),
    )
    finetune_state: Literal["own", "last"] = Field(
        "own",
        description="what clients have in these rounds in place of the global state: the result of their own upload, "
        "or the state after the last exchange, such as its prototypes",
        json_schema_extra=added_in("0.2.0"),
    )
    stop_after: int = Field(
        0,
        ge=0,
        le=UINT32_MAX,
        description="end the run after this many rounds without a gain in accuracy; 0 runs all rounds",
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
        le=UINT32_MAX,
        description="last rounds of the run, in which newcomers alone train",
        json_schema_extra=added_in("0.2.0"),
    )
    newcomer_samples: int = Field(
        0,
        ge=0,
        le=UINT32_MAX,
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

    @model_validator(mode="before")
    @classmethod
    def _unfold_privacy(cls, values: Any) -> Any:
        return unfold_privacy(values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _settings_fit_method(self) -> Self:
        # all settings are stored, so that a stored run does not depend on the defaults of this version
        resolved = resolve_settings(method_named(self.method), self.method_settings)
        object.__setattr__(self, "method_settings", canonical(resolved))
        self.method_spec.upload_rules(resolved, self.exchange_shape)
        return self

    @model_validator(mode="after")
    def _aggregation_fits_method(self) -> Self:
        rules = self.method_spec.aggregation_rules(self.settings)
        if self.aggregation.rule not in rules:
            raise ConfigurationError(
                f"aggregation {self.aggregation.rule} makes no sense for {self.method} with these settings; "
                f"it has: {', '.join(rules)}"
            )
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
    def _has_prototypes_to_hold_back(self) -> Self:
        rules = self.method_spec.upload_rules(self.settings, self.exchange_shape)
        check_preset(self.privacy, self.wire, self.method_spec, has_prototypes=rules.prototypes is not None)
        check_noise(self.privacy, self.method_spec, self.settings, has_prototypes=rules.prototypes is not None)
        check_samples_private(self.privacy, self.data, self.training)
        check_secure_release(self.privacy, self.method_spec, rounds=self.rounds, participation=self.participation)
        if self.privacy.min_class_samples and rules.prototypes is None:
            raise ConfigurationError(f"{self.method} uploads no prototypes; min_class_samples has no effect on it")
        return self

    @model_validator(mode="after")
    def _fusion_fits(self) -> Self:
        if self.privacy.fusion == "client" and not self.method_spec.fuses:
            raise ConfigurationError(f"{self.method} fuses no prototypes; fusion = client is a setting of feddbp")
        if self.privacy.fusion == "client" and self.wire.fisher is FisherForm.TOP_CHANNELS:
            raise ConfigurationError("with fusion = client no Fisher scores are sent; leave fisher at scores")
        return self

    @model_validator(mode="after")
    def _sums_suffice(self) -> Self:
        if self.sends_terms:
            check_sums(self)
        return self

    @model_validator(mode="after")
    def _special_rounds_fit(self) -> Self:
        check_own_state(self)
        check_last_state(self)
        check_stopping(self)
        check_newcomers(self)
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
            return Sources.OWN if is_fine_tuning and self.finetune_state == "own" else Sources.ALL
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
            fusion_at_client=self.privacy.fusion == "client",
        )

    @property
    def sends_terms(self) -> bool:
        """Whether clients upload the terms of a sum in fixed point, instead of what their method uploads."""
        return self.privacy.secure_sums or self.aggregation.sums == "fixed"

    @property
    def without_effect(self) -> tuple[Location, ...]:
        """Settings that another one overrides."""
        overridden = self.privacy.secure_sums and self.aggregation.sums == "float"
        return (("aggregation", "sums"),) if overridden else ()

    @property
    def least_summed(self) -> int:
        """The fewest clients of a secure sum: two thirds and one of those that a round has, or a server could choose
        with whom a client's term is summed.

        Shares of noise are made for sums of all clients, of whom a third may be lost on the way.
        """
        if self.privacy.dp != "off":
            return self.clients
        per_round = math.ceil(self.clients * self.participation - 1e-9)
        return max(MIN_CLIENTS, threshold_of(per_round))

    @property
    def sum_sha256(self) -> bytes:
        """Of everything in the configuration but the number of rounds, by which a run may be extended."""
        meaning = {name: value for name, value in canonical(self).items() if name != "rounds"}
        return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).digest()

    @property
    def upload_rules(self) -> PayloadRules:
        """Rules for what clients of the run upload."""
        return sum_rules(self.expanded_rules, self.exchange_shape) if self.sends_terms else self._method_rules

    @property
    def expanded_rules(self) -> PayloadRules:
        """Rules for the values that are averaged."""
        expansion = self.method_spec.expansion
        return self._method_rules if expansion is None else expansion.rules(self.settings, self.exchange_shape)

    @property
    def _method_rules(self) -> PayloadRules:
        return self.method_spec.upload_rules(self.settings, self.exchange_shape)

    @property
    def download_rules(self) -> PayloadRules:
        """Rules for what clients of the run receive."""
        rules = self.method_spec.download_rules(self.settings, self.exchange_shape)
        return with_holders(rules, self.exchange_shape) if self.sends_terms else rules

    def architecture_of(self, client_id: int) -> str:
        """The client's architecture unless it brings its own: that of its model group, or the one common to all."""
        if self.method_spec.common_architecture:
            return self.guide.network
        if self.method_spec.fixed_network is not None:
            return self.method_spec.fixed_network(self.settings)
        return MODEL_GROUPS[self.training.model_group].body_of(client_id)

    @property
    def noise_sharers(self) -> int:
        """Under dp, the fewest clients whose noise is seen together: those of a secure sum, else each by itself."""
        return threshold_of(self.clients) if self.privacy.secure_sums else 1

    @property
    def imports(self) -> tuple[str, ...]:
        """Modules of the functions that the run names, sorted: every client has to allow their import."""
        named = (self.training.transform, self.training.optimizer)
        return tuple(sorted({name.partition(REFERENCE_MARK)[0] for name in named if REFERENCE_MARK in name}))

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
