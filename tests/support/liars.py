"""Light clients that lie: members whose uploads pass every check of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from benchmarks.light_client import LightClient

from feddbp_client.daemon.connection import Connection
from feddbp_common.wire import Encoded, decode, encode


class Liar(LightClient):
    """All values of its prototypes are the same."""

    def __init__(self, client_id: int, connection: Connection, *, value: float) -> None:
        super().__init__(client_id, connection)
        self._value = value

    def encoded_upload(self, round_number: int) -> Encoded:
        honest = super().encoded_upload(round_number)
        payload = decode(honest.manifest, honest.body())
        assert payload.prototypes is not None
        vectors = np.full_like(payload.prototypes.vectors, self._value)
        return encode(replace(payload, prototypes=replace(payload.prototypes, vectors=vectors)))
