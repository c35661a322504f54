"""Shares of the server between clients: how many calls one may have open, and whose turn it is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from feddbp.v1 import federation_pb2 as pb
from feddbp_server.run.refusals import RefusedError


class CallsPerClient:
    """Bounds the open calls of one kind by client id: a client that joins again has those of its sessions before."""

    def __init__(self, what: str, most: int) -> None:
        self._what = what
        self._most = most
        self._open: Counter[int] = Counter()

    @asynccontextmanager
    async def one_more(self, client_id: int) -> AsyncIterator[None]:
        if self._open[client_id] >= self._most:
            raise RefusedError(pb.REFUSAL_REASON_BUSY, f"client {client_id} has too many {self._what} open")
        self._open[client_id] += 1
        try:
            yield
        finally:
            self._open[client_id] -= 1
            if not self._open[client_id]:
                del self._open[client_id]


class FairSlots:
    """Lets a few clients at a time do something expensive, and each of them once at a time, in the order they came.

    A client that asks without end waits behind all others between two turns.
    """

    def __init__(self, slots: int) -> None:
        self._free = asyncio.Semaphore(slots)
        self._by_client: dict[int, asyncio.Lock] = {}
        self._waiting: Counter[int] = Counter()

    @asynccontextmanager
    async def turn(self, client_id: int) -> AsyncIterator[None]:
        lock = self._by_client.setdefault(client_id, asyncio.Lock())
        self._waiting[client_id] += 1
        try:
            async with lock, self._free:
                yield
        finally:
            self._waiting[client_id] -= 1
            if not self._waiting[client_id]:
                del self._waiting[client_id], self._by_client[client_id]
