"""FedDBP: dual-branch features and Fisher-guided fusion of prototypes."""

from __future__ import annotations

from typing import Final, Literal, Self

from pydantic import Field, model_validator

from feddbp_common.config.identity import added_in
from feddbp_common.errors import ConfigurationError
from feddbp_common.methods.contract import ExchangeShape, Method, MethodSettings, Preset, SumWeights, all_rules
from feddbp_common.methods.guide_network import guide_bytes, guide_rules
from feddbp_common.methods.payload_size import ImageShape, PayloadSize, prototype_rows
from feddbp_common.wire import PayloadRules, PrototypeRule

_INDEX_BYTES: Final = 2
"""Size of a channel's index."""


class FedDBPSettings(MethodSettings):
    """The paper's hyper-parameters, and options for what it leaves open."""

    lambda_1: float = Field(1.0, ge=0, description="weight of the decision branch's cross-entropy")
    lambda_2: float = Field(10.0, ge=0, description="weight of L_s, the distance of shared features to prototypes")
    lambda_3: float = Field(1.0, ge=0, description="weight of L_d, the contrastive loss of decision features")
    tau: float = Field(0.07, gt=0, description="temperature of L_d")
    k_top: int = Field(30, ge=0, description="channels of a class in which a client keeps its own prototype")
    eta: float = Field(1.0, ge=0, le=1, description="weight of the client's own value in those channels")
    l_s_reduction: Literal["mean", "sum"] = Field(
        "mean", description="over channels; `sum`, as printed, diverges at lambda_2 = 10"
    )
    l_d_form: Literal["log", "ratio"] = Field(
        "log", description="`ratio`, as printed, has no logarithm; its gradient vanishes at the start"
    )
    hard_negatives: Literal["reweight", "printed", "boundary", "none"] = Field(
        "reweight", description="how negatives inside the boundary are weighted; `none` is the ablation w/o hard"
    )
    branch: Literal["linear", "relu", "mlp"] = Field("linear", description="shape of each branch, 512 to 512")
    heads: Literal["shared", "separate"] = Field(
        "shared", description="one classification head for both branches, or one each"
    )
    inference: Literal["prototype_normalized", "prototype", "head", "guide", "both"] = Field(
        "prototype_normalized",
        description="inference rule of the reported accuracy; all are recorded; the last two only if guided",
    )
    without_share: bool = Field(False, description="ablation w/o share: decision branch only, no L_s")
    without_decision: bool = Field(
        False, description="ablation w/o deci.: shared branch only, no L_d, no second cross-entropy"
    )
    without_personalisation: bool = Field(
        False, description="ablation w/o pers.: every client receives the averages unchanged"
    )
    anchors: Literal["global", "random", "shuffled"] = Field(
        "global",
        description="what clients align with: the fused global prototypes, or, as a control without their knowledge, "
        "random directions or the global prototypes of other classes",
        json_schema_extra=added_in("0.2.0"),
    )
    guided: bool = Field(
        False,
        description="every client also trains the run's --guide, whose weights are averaged over clients; both decide",
        json_schema_extra=added_in("0.2.0"),
    )
    guide_prior: Literal["client", "none"] = Field(
        "client",
        description="what is added to the guide's logits: the log frequencies of the client's classes, or nothing",
        json_schema_extra=added_in("0.2.0"),
    )
    guide_weight: float = Field(
        1.0,
        gt=0,
        description="weight of the guide against the own network where both decide",
        json_schema_extra=added_in("0.2.0"),
    )
    distillation: float = Field(
        0.0,
        ge=0,
        description="weight of the own network's divergence from the guide",
        json_schema_extra=added_in("0.2.0"),
    )
    temperature: float = Field(
        2.0, gt=0, description="temperature of distillation", json_schema_extra=added_in("0.2.0")
    )
    prototype_gradient: Literal["all", "branches"] = Field(
        "all",
        description="what L_s and L_d train: everything, or the branches alone",
        json_schema_extra=added_in("0.2.0"),
    )
    warmup_rounds: int = Field(
        0,
        ge=0,
        description="rounds over which lambda_2 and lambda_3 rise to their value",
        json_schema_extra=added_in("0.2.0"),
    )

    @model_validator(mode="after")
    def _has_a_branch(self) -> Self:
        if self.without_share and self.without_decision:
            raise ConfigurationError("without_share and without_decision leave no branch; use only one")
        return self

    @property
    def exchanges_prototypes(self) -> bool:
        """Whether anything uses them: beside a guide, with both weights at zero, nothing does."""
        return not (self.guided and self.lambda_2 == 0 and self.lambda_3 == 0)

    @model_validator(mode="after")
    def _has_the_rule(self) -> Self:
        if self.inference in ("guide", "both") and not self.guided:
            raise ConfigurationError(f"inference {self.inference} needs guided")
        if self.inference.startswith("prototype") and not self.exchanges_prototypes:
            raise ConfigurationError(f"inference {self.inference} needs prototypes; give lambda_2 or lambda_3 a weight")
        return self


def _upload_rules(settings: FedDBPSettings, shape: ExchangeShape) -> PayloadRules:
    if settings.k_top > shape.feature_dim:
        raise ConfigurationError(f"k_top is {settings.k_top}, but a prototype has {shape.feature_dim} channels")
    if not settings.exchanges_prototypes:
        return PayloadRules(tensors=guide_rules(shape, required=True))
    return PayloadRules(
        prototypes=PrototypeRule(classes=shape.classes, width=shape.feature_dim, counts=True),
        fisher_scores=not shape.top_channels_only and not shape.fusion_at_client,
        top_channels=settings.k_top if shape.top_channels_only else None,
        tensors=guide_rules(shape, required=True) if settings.guided else (),
    )


def _download_rules(settings: FedDBPSettings, shape: ExchangeShape) -> PayloadRules:
    if not settings.exchanges_prototypes:
        return PayloadRules(tensors=guide_rules(shape, required=False))
    return PayloadRules(
        prototypes=PrototypeRule(classes=shape.classes, width=shape.feature_dim),
        prototypes_required=False,
        tensors=guide_rules(shape, required=False) if settings.guided else (),
    )


def _upload_bytes(settings: FedDBPSettings, shape: ExchangeShape, image: ImageShape) -> int:
    guide, rows = _guide_bytes(settings, shape, image), prototype_rows(settings, shape, image)
    if not settings.exchanges_prototypes:
        return guide
    if shape.fusion_at_client:
        return rows + guide
    scores = _INDEX_BYTES * shape.classes * settings.k_top if shape.top_channels_only else rows
    return rows + scores + guide


def _download_bytes(settings: FedDBPSettings, shape: ExchangeShape, image: ImageShape) -> int:
    rows = prototype_rows(settings, shape, image) if settings.exchanges_prototypes else 0
    return rows + _guide_bytes(settings, shape, image)


def _guide_bytes(settings: FedDBPSettings, shape: ExchangeShape, image: ImageShape) -> int:
    channels, *_ = image
    return guide_bytes(shape, channels) if settings.guided else 0


FEDDBP = Method(
    name="feddbp",
    title="FedDBP",
    reference="Gao et al., ICASSP 2026",
    settings=FedDBPSettings,
    upload_rules=_upload_rules,
    download_rules=_download_rules,
    strategy="feddbp_server.strategies.feddbp:FedDBPStrategy",
    trainer="feddbp_client.methods.guided_feddbp:feddbp",
    loss_terms={
        "ce_shared": "cross-entropy, shared branch",
        "ce_decision": "cross-entropy, decision branch",
        "l_s": "prototype distance, shared branch",
        "l_d": "prototype contrast, decision branch",
        "ce_guide": "cross-entropy, guide",
        "distillation": "divergence from the guide",
    },
    equal_images=lambda settings: "channels" if settings.guided else "nothing",
    exchanges_weights=lambda settings: settings.guided,
    aggregation_rules=all_rules,
    up=PayloadSize(
        content="prototypes and Fisher scores", formula="8md; 4md + 2m k_top as top channels", size=_upload_bytes
    ),
    down=PayloadSize(content="prototypes", formula="4Cd", size=_download_bytes),
    fuses=True,
    sum_weights=lambda _: SumWeights(tensors_by_samples=True),
    presets={
        "gentle": Preset(
            settings={"lambda_2": 1.0, "lambda_3": 0.1},
            description="a tenth of the weights of L_s and L_d, which learns faster in short runs",
        ),
        "guided": Preset(
            # docs/decisions/guided.md has the trials
            settings={
                "guided": True,
                "inference": "both",
                "guide_weight": 4.0,
                "distillation": 1.0,
                # one branch with one cross-entropy
                "without_share": True,
                "lambda_1": 0.0,
                "lambda_2": 0.0,
                "lambda_3": 0.0,
            },
            description="instead of prototypes, a small network beside each client's own, averaged over clients; "
            "beyond the paper",
        ),
        "random-anchors": Preset(
            settings={"anchors": "random"}, description="control: fixed random directions instead of prototypes"
        ),
        "shuffled-classes": Preset(
            settings={"anchors": "shuffled"}, description="control: every class gets the prototype of another"
        ),
    },
)
