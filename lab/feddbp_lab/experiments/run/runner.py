"""Runs cells, as many at once as the machine has room for; each is a federation of real processes on loopback."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from feddbp_common.errors import FedDBPError
from feddbp_common.file_lock import is_locked
from feddbp_lab.experiments.cell import Cell
from feddbp_lab.experiments.run.cell_dir import Failure
from feddbp_lab.experiments.run.display import Display
from feddbp_lab.experiments.run.output_dir import OutputDir
from feddbp_lab.processes.guard import GRACE_SECONDS
from feddbp_lab.processes.local_federation import FederationOptions, LocalFederation

_LEAVING: Final = timedelta(seconds=3 * GRACE_SECONDS)
"""How long processes of a runner that was killed may take to be gone."""
_POLL_SECONDS: Final = 0.1


class StillInUseError(FedDBPError):
    """Processes of a runner that was killed still use the cell's directory."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What there is to run on."""

    jobs: int
    """Cells at once."""
    cores: int
    data_dir: Path
    gpus: tuple[int, ...] = ()

    def devices(self) -> list[str]:
        """One for each cell that runs at the same time."""
        if not self.gpus:
            return ["cpu"] * self.jobs
        return [f"cuda:{self.gpus[number % len(self.gpus)]}" for number in range(self.jobs)]

    def processes(self, cells_left: int) -> int:
        """Client processes of a cell. Shards are uneven, so whole cells keep cores busier than parts of one do."""
        return 1 if self.gpus else max(1, self.cores // max(1, min(self.jobs, cells_left)))


@dataclass(kw_only=True)
class Runner:
    """Works through cells that are not done yet; one that fails is recorded, and the others go on."""

    store: OutputDir
    cells: Sequence[Cell]
    machine: Machine
    display: Display
    keep_state: bool = False
    failed: list[Cell] = field(default_factory=list)
    interrupted: bool = False
    _workers: list[asyncio.Task[None]] = field(default_factory=list)

    async def run(self) -> None:
        self._waiting = deque(self.cells)
        self._left = len(self.cells)
        self._workers = [asyncio.create_task(self._work(device)) for device in self.machine.devices()]
        await asyncio.wait(self._workers, return_when=asyncio.FIRST_EXCEPTION)
        if any(not worker.cancelled() and worker.exception() for worker in self._workers if worker.done()):
            # a mistake in this program, which must not leave the others at work
            self.stop()
        await asyncio.wait(self._workers)
        for worker in self._workers:
            if not worker.cancelled():
                worker.result()

    def stop(self) -> None:
        """Ends every federation in order; called again, at once."""
        self.interrupted = True
        for worker in self._workers:
            worker.cancel()

    async def _work(self, device: str) -> None:
        while self._waiting and not self.interrupted:
            cell = self._waiting.popleft()
            await self._attempt(cell, device)
            self._left -= 1

    async def _attempt(self, cell: Cell, device: str) -> None:
        folder = self.store.folder(cell.id)
        self.display.begin(cell)
        try:
            with folder.lock():
                await self._federate(cell, device)
                results = folder.finish(keep_state=self.keep_state)
        except (FedDBPError, OSError, ValueError, KeyError) as error:  # the last two: a file is damaged
            failure = Failure.of(error)
            with suppress(OSError):  # a full disk is told on the screen at least, and the other cells have their turn
                folder.fail(failure)
            self.failed.append(cell)
            self.display.failed(cell, failure)
        else:
            self.display.done(cell, results.summary)
        finally:
            self.display.end(cell)

    async def _federate(self, cell: Cell, device: str) -> None:
        folder = self.store.folder(cell.id)
        await wait_until_released(folder.process_locks(), _LEAVING)
        folder.begin(cell.run)
        options = FederationOptions(
            run=cell.run,
            directory=folder.path,
            processes=self.machine.processes(self._left),
            data_dir=self.machine.data_dir,
            device=device,
        )
        async with LocalFederation(options) as federation, aclosing(federation.statuses()) as statuses:
            async for status in statuses:
                self.display.show(cell, status)
        federation.summary()  # raises if the server went before the run was over


async def wait_until_released(locks: Iterable[Path], patience: timedelta) -> None:
    """Waits for processes that are about to end: the guard of a killed runner gives them time for that."""
    deadline = time.monotonic() + patience.total_seconds()
    for path in locks:
        while is_locked(path):
            if time.monotonic() >= deadline:
                raise StillInUseError(f"a process of an earlier runner still uses {path.parent}")
            await asyncio.sleep(_POLL_SECONDS)
