"""LG-FedAvg: clients have their own feature extractors and share one head."""

from __future__ import annotations

from pydantic import Field

from feddbp_common.methods.contract import ExchangeShape, Method, MethodSettings, SumWeights, all_rules, always
from feddbp_common.methods.linear_head import HEAD_PAYLOAD_SIZE, head_rules
from feddbp_common.wire import PayloadRules


class LGFedAvgSettings(MethodSettings):
    """The weighting of clients."""

    weighted: bool = Field(
        True, description="average heads by training samples; false: equally, as in the authors' code"
    )


def _head(_: LGFedAvgSettings, shape: ExchangeShape) -> PayloadRules:
    return PayloadRules(tensors=head_rules(shape))


LG_FEDAVG = Method(
    name="lg-fedavg",
    title="LG-FedAvg",
    reference="Liang et al., 2020 (arXiv 2001.01523)",
    settings=LGFedAvgSettings,
    upload_rules=_head,
    download_rules=_head,
    strategy="feddbp_server.strategies.lg_fedavg:LGFedAvgStrategy",
    trainer="feddbp_client.methods.lg_fedavg:LGFedAvg",
    exchanges_weights=always,
    aggregation_rules=all_rules,
    sum_weights=lambda settings: SumWeights(tensors_by_samples=settings.weighted),
    up=HEAD_PAYLOAD_SIZE,
    down=HEAD_PAYLOAD_SIZE,
    needs_equal_heads=True,
)
