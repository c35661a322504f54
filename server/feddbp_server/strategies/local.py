"""Local training on the server: rounds pass, nothing is learnt and nothing is sent."""

from __future__ import annotations

from collections.abc import Iterable

from feddbp_common.methods.local import LocalSettings
from feddbp_common.wire import Payload
from feddbp_server.strategies.base import Strategy, Upload


class LocalStrategy(Strategy[LocalSettings]):
    """Only counts that everyone is done."""

    aggregates_prototypes_only = True

    def aggregate(self, known: Payload, uploads: Iterable[Upload], *, round_number: int) -> Payload:
        return known

    def reply(self, known: Payload, own_upload: Payload | None) -> Payload:
        return known
