"""FedAvg: all clients train one common network, whose weights are averaged."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from feddbp_common.methods.contract import ExchangeShape, Method, MethodSettings, SumWeights, all_rules, always
from feddbp_common.methods.guide_network import guide_bytes, guide_rules
from feddbp_common.methods.payload_size import ImageShape, PayloadSize
from feddbp_common.wire import PayloadRules


class FedAvgSettings(MethodSettings):
    """As in the paper: clients count by their samples."""

    weighted: bool = Field(True, description="weight clients by training samples instead of equally")


def _upload_rules(_: FedAvgSettings, shape: ExchangeShape) -> PayloadRules:
    return PayloadRules(tensors=guide_rules(shape, required=True))


def _download_rules(_: FedAvgSettings, shape: ExchangeShape) -> PayloadRules:
    return PayloadRules(tensors=guide_rules(shape, required=False))


def _network_bytes(_: FedAvgSettings, shape: ExchangeShape, image: ImageShape) -> int:
    channels, *_sides = image
    return guide_bytes(shape, channels)


_PAYLOAD_SIZE: Final = PayloadSize(content="the common network", formula="4 bytes a weight", size=_network_bytes)
FEDAVG = Method(
    name="fedavg",
    title="FedAvg",
    reference="McMahan et al., AISTATS 2017",
    settings=FedAvgSettings,
    equal_images=lambda _: "channels",
    upload_rules=_upload_rules,
    download_rules=_download_rules,
    strategy="feddbp_server.strategies.fedavg:FedAvgStrategy",
    trainer="feddbp_client.methods.fedavg:FedAvg",
    exchanges_weights=always,
    aggregation_rules=all_rules,
    sum_weights=lambda settings: SumWeights(tensors_by_samples=settings.weighted),
    up=_PAYLOAD_SIZE,
    down=_PAYLOAD_SIZE,
    common_architecture=True,
    needs_equal_heads=True,
)
