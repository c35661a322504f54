"""FedProc: a contrastive loss with the global prototypes, whose weight decreases over the rounds.

The paper averages model weights as well; with different architectures only prototypes are exchanged.
"""

from __future__ import annotations

from pydantic import Field

from feddbp_common.methods.contract import CollectingSettings, ExchangeShape, Method, SumWeights, all_rules
from feddbp_common.methods.fedproto import prototypes_down
from feddbp_common.methods.payload_size import GLOBAL_PROTOTYPES, REAL_BYTES, PayloadSize, prototype_rows
from feddbp_common.wire import PayloadRules, PrototypeRule


class FedProcSettings(CollectingSettings):
    """The schedule of the loss and the weighting of clients."""

    schedule_rounds: int | None = Field(
        None,
        ge=1,
        description="rounds over which cross-entropy replaces the contrastive loss; none: the rounds of the run "
        "(official code: 100)",
    )
    weighted: bool = Field(
        True, description="average prototypes by samples, as in the official code, instead of equally"
    )


def _upload_rules(_: FedProcSettings, shape: ExchangeShape) -> PayloadRules:
    return PayloadRules(prototypes=PrototypeRule(classes=shape.classes, width=shape.feature_dim, counts=True))


FEDPROC = Method(
    name="fedproc",
    title="FedProc",
    reference="Mu et al., Future Generation Computer Systems 2023",
    settings=FedProcSettings,
    upload_rules=_upload_rules,
    download_rules=prototypes_down,
    strategy="feddbp_server.strategies.fedproc:FedProcStrategy",
    trainer="feddbp_client.methods.fedproc:FedProc",
    loss_terms={"gpc": "prototype contrast"},
    aggregation_rules=all_rules,
    sum_weights=lambda settings: SumWeights(prototypes_by_samples=settings.weighted),
    up=PayloadSize(
        content="prototypes and sample counts",
        formula="m(4d + 4)",
        size=lambda settings, shape, image: prototype_rows(settings, shape, image) + REAL_BYTES * shape.classes,
    ),
    down=GLOBAL_PROTOTYPES,
)
