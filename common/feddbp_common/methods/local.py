"""Local training: the same rounds without any exchange; the baseline for all other methods."""

from __future__ import annotations

from feddbp_common.methods.contract import Method, MethodSettings, nothing
from feddbp_common.methods.payload_size import NO_PAYLOAD


class LocalSettings(MethodSettings):
    """Local training has no settings."""


LOCAL = Method(
    name="local",
    title="Local training",
    reference="no exchange; the baseline for all other methods",
    settings=LocalSettings,
    upload_rules=nothing,
    download_rules=nothing,
    strategy="feddbp_server.strategies.local:LocalStrategy",
    trainer="feddbp_client.methods.local:Local",
    aggregation_rules=lambda _: ("mean",),
    up=NO_PAYLOAD,
    down=NO_PAYLOAD,
)
