"""Local training on the server: rounds without aggregation."""

from __future__ import annotations

from collections.abc import Iterable

from feddbp_common.methods.local import LocalSettings
from feddbp_common.wire import Payload
from feddbp_server.strategies.base import Strategy, Upload


class LocalStrategy(Strategy[LocalSettings]):
    """Uploads are empty and only mark a client as done; replies are empty, too."""

    aggregates_prototypes_only = True

    def aggregate(self, state: Payload, uploads: Iterable[Upload], *, round_number: int) -> Payload:
        return state

    def reply(self, state: Payload, own_upload: Payload | None) -> Payload:
        return state
