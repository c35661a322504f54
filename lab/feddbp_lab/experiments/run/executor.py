"""Where cells run: the interface of executors, and the one that runs them on this machine."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from feddbp_lab.experiments.cell import Cell
from feddbp_lab.experiments.resources import Allocation, MachineCapacity, Request
from feddbp_lab.experiments.run.attempt import CellJob, CellOutcome, Progress, attempt_cell


class Executor(ABC):
    """Runs attempts at cells, as many at a time as there is room for; entered before the first one."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    @property
    @abstractmethod
    def description(self) -> str:
        """How many cells at a time, and on what."""

    @abstractmethod
    def check(self, cells: Iterable[Cell]) -> None:
        """Raises ConfigurationError if a cell asks for more than there is."""

    @abstractmethod
    def allocate(self, cell: Cell, *, cells_left: int) -> Allocation | None:
        """Resources for a cell; None while others have them. `cells_left` counts the running ones, too."""

    @abstractmethod
    def release(self, allocation: Allocation) -> None: ...

    @abstractmethod
    async def run(self, job: CellJob, allocation: Allocation, progress: Progress) -> CellOutcome:
        """An attempt at a cell; a cancellation stops it in order, a second one at once."""


@dataclass(kw_only=True)
class LocalExecutor(Executor):
    """Runs cells on this machine, side by side within its cores, GPUs and memory."""

    jobs: int
    """Cells that run at the same time, at most."""
    cores: int
    gpus: tuple[int, ...] = ()
    memory: int = 0
    """0: not counted, and no cell may ask for any."""

    def __post_init__(self) -> None:
        self._capacity = MachineCapacity(cpus=float(self.cores), gpus=self.gpus, memory=self.memory)
        self._running = 0

    @property
    def description(self) -> str:
        resources = f"GPUs {', '.join(map(str, self.gpus))}" if self.gpus else f"{self.cores} CPU cores"
        return f"up to {self.jobs} at a time on {resources}"

    def check(self, cells: Iterable[Cell]) -> None:
        for cell in cells:
            self._capacity.check(self._request(cell, cells_left=self.jobs))

    def allocate(self, cell: Cell, *, cells_left: int) -> Allocation | None:
        if self._running >= self.jobs:
            return None
        allocation = self._capacity.allocate(self._request(cell, cells_left=cells_left))
        if allocation is not None:
            self._running += 1
            # a share that was not asked for limits nobody: it is how many cells the user wants on a GPU
            is_asked_for = cell.resources.num_gpus is not None
            return replace(allocation, caps_memory=is_asked_for)
        return None

    def release(self, allocation: Allocation) -> None:
        self._running -= 1
        self._capacity.release(allocation)

    async def run(self, job: CellJob, allocation: Allocation, progress: Progress) -> CellOutcome:
        return await attempt_cell(job, allocation, progress)

    def _request(self, cell: Cell, *, cells_left: int) -> Request:
        """Shards are uneven, so several cells use the cores better than one split cell."""
        together = max(1, min(self.jobs, cells_left))
        on_a_gpu = math.ceil(self.jobs / len(self.gpus)) if self.gpus else 0
        default = Request(cpus=self.cores / together, gpus=1 / on_a_gpu if on_a_gpu else 0.0)
        return cell.resources.request(default)
