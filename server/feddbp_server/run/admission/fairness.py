"""Shares of the server between clients: how many calls one may have open, and whose turn it is."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from feddbp.v1 import federation_pb2 as pb
from feddbp_server.run.admission.refusals import RefusedError


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


class SlotsWithTimeout:
    """A fixed number of slots, for which callers wait in order as long as one is released now and then.

    Once none was released for `timeout`, their holders are stuck: all callers that wait go without a slot. There is
    one timer for all of them.
    """

    def __init__(self, slots: int, timeout: timedelta) -> None:
        self._free = slots
        self._timeout = timeout.total_seconds()
        self._waiting: deque[asyncio.Future[bool]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._released_at = 0.0

    async def take(self) -> bool:
        """Whether the caller has a slot, which it has to release."""
        if self._free:
            self._free -= 1
            return True
        if not self._timeout:
            return False
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        self._waiting.append(turn)
        if self._timer is None:
            self._released_at = loop.time()
            self._timer = loop.call_later(self._timeout, self._check_progress)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self.release()
            raise

    def release(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(True)
                self._released_at = asyncio.get_running_loop().time()
                return
        self._free += 1

    def _check_progress(self) -> None:
        loop, self._timer = asyncio.get_running_loop(), None
        if not self._waiting:
            return
        left = self._released_at + self._timeout - loop.time()
        if left > 0:
            self._timer = loop.call_later(left, self._check_progress)
            return
        waiting, self._waiting = self._waiting, deque()
        for turn in waiting:
            if not turn.done():
                turn.set_result(False)
