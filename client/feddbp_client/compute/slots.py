"""What the clients of a process may do at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import torch


class TrainingSlots:
    """So many clients train at the same time on each device, and none while one is being built.

    Initial weights are drawn from the generator that all clients of a process share, so nothing else may draw from it
    then. On a CPU that holds for rounds as well.
    """

    def __init__(self, jobs: Mapping[torch.device, int], *, one_at_a_time: bool = False) -> None:
        """With `one_at_a_time`, all devices share a single slot."""
        only = asyncio.Semaphore(1)
        self._slots = {device: only if one_at_a_time else asyncio.Semaphore(count) for device, count in jobs.items()}
        self._free = [only] if one_at_a_time else [self._slots[device] for device in jobs for _ in range(jobs[device])]
        self._building = asyncio.Lock()

    @property
    def count(self) -> int:
        """Clients that can train at the same time."""
        return len(self._free)

    def on(self, device: torch.device) -> asyncio.Semaphore:
        """The slots of a device; a client holds one while it trains or evaluates."""
        return self._slots[device]

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Holds all slots of the process."""
        async with self._building, AsyncExitStack() as held:
            for slot in self._free:
                await held.enter_async_context(slot)
            yield
