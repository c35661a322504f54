"""FedProc: features are contrasted with the global prototypes, less and less as rounds pass.

The paper averages model weights as well; across unlike architectures only prototypes travel.
"""

from __future__ import annotations

from pydantic import Field

from feddbp_common.methods.contract import CollectingSettings, ExchangeShape, Method
from feddbp_common.methods.fedproto import prototypes_down
from feddbp_common.methods.payload_size import GLOBAL_PROTOTYPES, REAL_BYTES, PayloadSize, prototype_rows
from feddbp_common.wire import PayloadRules, PrototypeRule


class FedProcSettings(CollectingSettings):
    """The schedule, and how clients are weighted."""

    schedule_rounds: int | None = Field(
        None,
        ge=1,
        description="rounds over which cross-entropy takes over from the contrast; the run's own unless given "
        "(official code: 100)",
    )
    weighted: bool = Field(
        True, description="prototypes are averaged by samples, as in the official code, or clients count equally"
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
    up=PayloadSize(
        content="prototypes and sample counts",
        formula="m(4d + 4)",
        size=lambda settings, shape, image: prototype_rows(settings, shape, image) + REAL_BYTES * shape.classes,
    ),
    down=GLOBAL_PROTOTYPES,
)
