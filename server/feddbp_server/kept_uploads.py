"""Uploads to the open round, kept in memory so that closing it need not read them back. The store has all of them."""

from __future__ import annotations

from typing import Final

from feddbp_common.wire import Payload

KEPT_BYTES: Final = 256 << 20
"""At most; what does not fit is read from the store."""


class KeptUploads:
    """As many payloads of one round as there is room for."""

    def __init__(self, room: int = KEPT_BYTES) -> None:
        self._most = room
        self._room = room
        self._round = -1
        self._payloads: dict[int, Payload] = {}

    def add(self, round_number: int, client_id: int, payload: Payload) -> None:
        if round_number != self._round:
            self.clear()
            self._round = round_number
        size = sum(array.nbytes for _, array in payload.arrays())
        if size <= self._room:
            self._room -= size
            self._payloads[client_id] = payload

    def get(self, round_number: int, client_id: int) -> Payload | None:
        return self._payloads.get(client_id) if round_number == self._round else None

    def clear(self) -> None:
        self._payloads, self._room = {}, self._most
