"""Every client alone: the same daemon and rounds, and nothing exchanged. What any federation has to beat."""

from __future__ import annotations

from feddbp_common.methods.contract import Method, MethodSettings, nothing
from feddbp_common.methods.payload_size import NO_PAYLOAD


class LocalSettings(MethodSettings):
    """Training alone has no settings of its own."""


LOCAL = Method(
    name="local",
    title="Local training",
    reference="no exchange; the lower bound a federation has to beat",
    settings=LocalSettings,
    upload_rules=nothing,
    download_rules=nothing,
    strategy="feddbp_server.strategies.local:LocalStrategy",
    trainer="feddbp_client.methods.local:Local",
    up=NO_PAYLOAD,
    down=NO_PAYLOAD,
)
