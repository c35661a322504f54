"""Runs cells, several at the same time; each is a federation of real processes on loopback."""

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
from feddbp_lab.experiments.run.cell_dir import CellDir, Failure
from feddbp_lab.experiments.run.display import CellDisplay
from feddbp_lab.experiments.run.output_dir import OutputDir
from feddbp_lab.processes.guard import GRACE_SECONDS
from feddbp_lab.processes.local_federation import FederationOptions, LocalFederation

_EXIT_PATIENCE: Final = timedelta(seconds=3 * GRACE_SECONDS)
"""How long the processes of a killed runner may take to exit."""
_POLL_SECONDS: Final = 0.1


class CellInUseError(FedDBPError):
    """Processes of a runner that was killed still use the cell's directory."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The resources of this machine that cells may use."""

    jobs: int
    """Cells that run at the same time."""
    cores: int
    data_dir: Path
    gpus: tuple[int, ...] = ()

    def devices(self) -> list[str]:
        """A device for each cell that runs at the same time."""
        if not self.gpus:
            return ["cpu"] * self.jobs
        return [f"cuda:{self.gpus[number % len(self.gpus)]}" for number in range(self.jobs)]

    def processes(self, cells_left: int) -> int:
        """Client processes per cell. Shards are uneven, so several cells use the cores better than one split cell."""
        return 1 if self.gpus else max(1, self.cores // max(1, min(self.jobs, cells_left)))


@dataclass(kw_only=True)
class Runner:
    """Runs cells that are not done; the failure of one is recorded and does not affect the others."""

    output: OutputDir
    cells: Sequence[Cell]
    machine: Machine
    display: CellDisplay
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
            # a bug in this program must not leave federations running
            self.stop()
        await asyncio.wait(self._workers)
        for worker in self._workers:
            if not worker.cancelled():
                worker.result()

    def stop(self) -> None:
        """Stops every federation; a second call kills what is still running."""
        self.interrupted = True
        for worker in self._workers:
            worker.cancel()

    async def _work(self, device: str) -> None:
        while self._waiting and not self.interrupted:
            cell = self._waiting.popleft()
            await self._run_cell(cell, device)
            self._left -= 1

    async def _run_cell(self, cell: Cell, device: str) -> None:
        directory = self.output.cell_dir(cell.id)
        self.display.begin(cell)
        try:
            with directory.lock():
                await self._run_federation(cell, directory, device)
                results = directory.collect_results(keep_state=self.keep_state)
        except (FedDBPError, OSError, ValueError, KeyError) as error:  # the last two: a file is damaged
            failure = Failure.of(error)
            with suppress(OSError):  # on a full disk the failure is at least displayed, and the other cells run
                directory.record_failure(failure)
            self.failed.append(cell)
            self.display.failed(cell, failure)
        else:
            self.display.done(cell, results.summary)
        finally:
            self.display.end(cell)

    async def _run_federation(self, cell: Cell, directory: CellDir, device: str) -> None:
        await wait_until_released(directory.process_locks(), _EXIT_PATIENCE)
        directory.prepare(cell.run)
        options = FederationOptions(
            run=cell.run,
            directory=directory.path,
            processes=self.machine.processes(self._left),
            data_dir=self.machine.data_dir,
            device=device,
        )
        federation = LocalFederation(options)
        try:
            async with federation, aclosing(federation.statuses()) as statuses:
                async for status in statuses:
                    self.display.show(cell, status)
        finally:
            with suppress(OSError):  # a full disk fails the cell elsewhere, with its cause
                directory.add_cost(federation.core_seconds)
        federation.summary()  # raises if the server was stopped before the run had ended


async def wait_until_released(locks: Iterable[Path], patience: timedelta) -> None:
    """Waits for processes of a killed runner, which its guards stop with a grace period."""
    deadline = time.monotonic() + patience.total_seconds()
    for path in locks:
        while is_locked(path):
            if time.monotonic() >= deadline:
                raise CellInUseError(f"a process of an earlier runner still uses {path.parent}")
            await asyncio.sleep(_POLL_SECONDS)
