"""Uploads to the open round, kept in memory so that closing it need not read them back. The store has all of them.

A client's upload stays until its next one takes its place: memory that is freed and asked for again at every round
would make the server breathe by as much as it keeps.
"""

from __future__ import annotations

from feddbp_common.wire import Payload


class UploadCache:
    """The last payload of as many clients as there is room for."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._payloads: dict[int, tuple[int, Payload]] = {}

    def add(self, round_number: int, client_id: int, payload: Payload) -> None:
        self._forget(client_id)
        size = _bytes_of(payload)
        if size > self._room:
            self._forget_all_but(round_number)
        if size <= self._room:
            self._room -= size
            self._payloads[client_id] = round_number, payload

    def get(self, round_number: int, client_id: int) -> Payload | None:
        of_round, payload = self._payloads.get(client_id, (None, None))
        return payload if of_round == round_number else None

    def _forget_all_but(self, round_number: int) -> None:
        for client_id in [number for number, (of_round, _) in self._payloads.items() if of_round != round_number]:
            self._forget(client_id)

    def _forget(self, client_id: int) -> None:
        if client_id in self._payloads:
            _, payload = self._payloads.pop(client_id)
            self._room += _bytes_of(payload)


def _bytes_of(payload: Payload) -> int:
    return sum(array.nbytes for _, array in payload.arrays())
