"""The parts of a run's configuration that are about what clients exchange: wire, aggregation, privacy, guide."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from feddbp_common.config.types import UINT32_MAX, FrozenModel
from feddbp_common.errors import ConfigurationError
from feddbp_common.methods.guide_network import GUIDES

CAREFUL_SAMPLES: Final = 5
"""The least `min_class_samples` under `privacy = careful`."""


class FisherForm(StrEnum):
    """How Fisher scores are sent."""

    SCORES = "scores"
    TOP_CHANNELS = "top_channels"


class RealType(StrEnum):
    """Element type of real-valued tensors on the wire."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


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
        "mean",
        description="rule by which uploads are combined; all but mean bound what a few false uploads can do",
        json_schema_extra={"flag": "--aggregation"},
    )
    sums: Literal["float", "fixed"] = Field(
        "float",
        description="how uploads are added up: fixed has clients send their terms in fixed point, as always with "
        "secure_sums",
    )
    trim: float = Field(
        0.1, gt=0, lt=0.5, description="share left out at either end by trimmed_mean, at least one of three"
    )
    clip_factor: float = Field(3.0, ge=1, description="largest norm under clipped, as a multiple of the median")
    weight_cap: float = Field(
        20.0,
        ge=1,
        description="most samples a client is weighted by, as a multiple of the median of the round's clients",
    )

    @model_validator(mode="after")
    def _settings_have_an_effect(self) -> Self:
        for setting, rule in (("trim", "trimmed_mean"), ("clip_factor", "clipped")):
            changed = getattr(self, setting) != type(self).model_fields[setting].default
            if changed and self.rule != rule:
                raise ConfigurationError(f"{setting} is a setting of aggregation {rule}; the run's is {self.rule}")
        return self


class PrivacyConfig(FrozenModel):
    """Privacy: what the server gets to see of a client's upload."""

    preset: Literal["none", "careful"] = Field(
        "none",
        description=f"careful: no Fisher matrices, min_class_samples {CAREFUL_SAMPLES} and counts in buckets, "
        "where not given otherwise",
        json_schema_extra={"flag": "--privacy", "unfolds": True},
    )
    fusion: Literal["server", "client"] = Field(
        "server",
        description="who fuses a client's own prototypes with the global ones; clients that do send no Fisher scores",
    )
    secure_sums: bool = Field(
        False,
        description="the server sees nothing of uploads but their sum over clients; needs certificates, which a demo "
        "makes itself",
    )
    noise_multiplier: float = Field(
        0.0,
        ge=0,
        description="Gaussian noise on each channel of uploaded prototypes, as a multiple of clip_bound; without a "
        "guarantee, for which there is dp",
    )
    clip_bound: float = Field(
        1.0, gt=0, description="norm to which prototypes, or under dp every sample's features, are clipped before noise"
    )
    min_class_samples: int = Field(
        0,
        ge=0,
        le=UINT32_MAX,
        description="prototypes of fewer samples do not leave a client",
    )
    counts: Literal["exact", "buckets"] = Field(
        "exact", description="samples per class as clients tell them: exact, or the nearest power of two"
    )

    dp: Literal["off", "frozen"] = Field(
        "off",
        description="frozen: differential privacy of one release per client, of sums and counts of the features of a "
        "fixed network; see the method frozen",
    )
    epsilon: float = Field(2.0, gt=0, le=100, description="epsilon of a client's release under dp")
    delta: float = Field(1e-5, gt=0, lt=0.1, description="delta of a client's release under dp")

    @model_validator(mode="after")
    def _noise_settings_have_an_effect(self) -> Self:
        if self.dp == "off":
            for setting in ("epsilon", "delta"):
                if self._is_changed(setting):
                    raise ConfigurationError(f"{setting} is a setting of dp = frozen; the run has dp = off")
            if self._is_changed("clip_bound") and not self.noise_multiplier:
                raise ConfigurationError("clip_bound has an effect with dp = frozen or a noise_multiplier alone")
        elif self.noise_multiplier:
            raise ConfigurationError(
                "dp = frozen computes its noise from epsilon and delta; leave out noise_multiplier"
            )
        return self

    def _is_changed(self, setting: str) -> bool:
        return bool(getattr(self, setting) != type(self).model_fields[setting].default)

    @property
    def declares_counts(self) -> bool:
        """Whether clients tell their samples of each class at all when they join."""
        return not self.secure_sums and self.dp == "off"

    @property
    def has_exact_counts(self) -> bool:
        """Whether clients declare their true number of samples of each class when they join."""
        return self.declares_counts and self.counts == "exact"


class GuideConfig(FrozenModel):
    """Guide: a small network that all clients have in common."""

    network: str = Field(
        "guide_large",
        description=f"for methods that exchange one: {', '.join(GUIDES)}",
        json_schema_extra={"flag": "--guide"},
    )

    @field_validator("network")
    @classmethod
    def _known_guide(cls, name: str) -> str:
        if name not in GUIDES:
            raise ConfigurationError(f"no guide is called {name!r}; there are: {', '.join(GUIDES)}")
        return name
