"""Runs the cells of a campaign with an executor, beside other runners that share the output directory."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, Final

from feddbp_common.artifacts import CELL_FAILURE_NAME, CELL_LOCK_NAME
from feddbp_common.file_lock import is_locked
from feddbp_lab.experiments.cell import Cell
from feddbp_lab.experiments.resources import Allocation
from feddbp_lab.experiments.run.attempt import CellJob, CellOutcome, CellProgressReport, Verdict, is_done
from feddbp_lab.experiments.run.cell_dir import DamagedCellError, Failure
from feddbp_lab.experiments.run.display import CellDisplay, result_text
from feddbp_lab.experiments.run.executor import Executor
from feddbp_lab.experiments.run.lease import LeaseRecord, LeaseWatch, boot_id, cell_key, current_lease
from feddbp_lab.experiments.run.output_dir import OutputDir
from feddbp_lab.experiments.run.store import DirectoryStore

log = logging.getLogger("feddbp.lab")

_POLL_SECONDS: Final = 1.0
_LOSSES: Final = 3
"""Attempts of a cell that may lose their node before the cell counts as failed."""
_FAILED_LOOKS: Final = 300
"""Times in a row that --out could not be read, a poll apart, after which a cell counts as failed."""


class _Available(Enum):
    FREE = auto()
    ELSEWHERE = auto()
    """Another runner has it."""
    DONE = auto()
    FAILED = auto()
    """Another runner failed at it since this one has begun, or --out cannot be read."""
    UNKNOWN = auto()
    """--out could not be read this time."""


@dataclass(kw_only=True)
class Runner:
    """Runs cells that are not done; the failure of one is recorded and does not affect the others.

    A cell that another runner works on is left to it, and taken over when its lease has ended.
    """

    output: OutputDir
    cells: Sequence[Cell]
    executor: Executor
    display: CellDisplay
    job: Callable[[Cell], CellJob]
    failed: list[Cell] = field(default_factory=list)
    interrupted: bool = False
    _attempts: dict[asyncio.Task[None], Cell] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._waiting = deque(self.cells)
        self._elsewhere: dict[str, Cell] = {}
        self._tried: set[str] = set()
        """Cells at which this runner, or another meanwhile, has begun an attempt: their failures are new."""
        self._losses: Counter[str] = Counter()
        self._failed_looks: Counter[str] = Counter()
        self._watch = LeaseWatch()
        self._ended: dict[str, LeaseRecord | None] = {}

    async def run(self) -> None:
        try:
            while not self.interrupted and (self._waiting or self._attempts or self._elsewhere):
                await self._start_what_fits()
                await self._wait()
        finally:
            if not self.interrupted:
                # a bug in this program must not leave federations running
                for attempt in self._attempts:
                    attempt.cancel()
            while self._attempts:
                await self._collect(asyncio.ALL_COMPLETED)

    def stop(self) -> None:
        """Stops every federation; a second call kills what is still running."""
        self.interrupted = True
        for attempt in self._attempts:
            attempt.cancel()

    async def _start_what_fits(self) -> None:
        """Starts cells in their order; one that does not fit now lets smaller ones pass."""
        for cell in list(self._waiting):
            left = len(self._waiting) + len(self._attempts)
            allocation = self.executor.allocate(cell, cells_left=left)
            if allocation is None:
                continue
            available = await self._availability(cell)
            if self.interrupted or available is not _Available.FREE:
                self.executor.release(allocation)
            if self.interrupted:
                return
            self._waiting.remove(cell)
            if available is _Available.FREE:
                self._tried.add(cell.id)
                self._attempts[asyncio.create_task(self._attempt(cell, allocation))] = cell
            else:
                self._leave(cell, available)

    async def _wait(self) -> None:
        """Waits until an attempt has ended, or it is time to look after cells of other runners."""
        if self._attempts:
            await self._collect(asyncio.FIRST_COMPLETED, seconds=_POLL_SECONDS if self._elsewhere else None)
        elif self._elsewhere and not self.interrupted:
            await asyncio.sleep(_POLL_SECONDS)
        for cell in list(self._elsewhere.values()):
            available = await self._availability(cell)
            if available is not _Available.ELSEWHERE:
                del self._elsewhere[cell.id]
                self._leave(cell, available)

    async def _collect(self, when: str, *, seconds: float | None = None) -> None:
        ended, _ = await asyncio.wait(self._attempts, timeout=seconds, return_when=when)
        for attempt in ended:
            del self._attempts[attempt]
            if not attempt.cancelled():
                attempt.result()

    def _leave(self, cell: Cell, available: _Available) -> None:
        """Puts a cell where it belongs by what another runner has done with it."""
        match available:
            case _Available.FREE:
                self._waiting.append(cell)
                self.display.end(cell)
            case _Available.ELSEWHERE:
                self._elsewhere[cell.id] = cell
                self._tried.add(cell.id)
            case _Available.UNKNOWN:
                self._elsewhere[cell.id] = cell
            case _Available.DONE:
                self._show_stored(cell)
            case _Available.FAILED:
                self._fail(cell, self._failure_elsewhere(cell))

    async def _availability(self, cell: Cell) -> _Available:
        try:
            available, record = await asyncio.to_thread(self._look_up, cell)
        except OSError as error:
            self._failed_looks[cell.id] += 1
            if self._failed_looks[cell.id] == 1:
                log.warning("%s: %s cannot be read: %s; trying again", cell.id, self.output.name, error)
            return _Available.FAILED if self._failed_looks[cell.id] >= _FAILED_LOOKS else _Available.UNKNOWN
        self._failed_looks[cell.id] = 0
        if available is _Available.FREE:
            self._ended[cell.id] = record
        elif record is not None:
            node, attempt, rounds = record.node, record.epoch, record.rounds_done
            self.display.show(cell, CellProgressReport(node=node, attempt=attempt, rounds=rounds, is_others=True))
        return available

    def _look_up(self, cell: Cell) -> tuple[_Available, LeaseRecord | None]:
        """What others have done with a cell, and its lease if that has not been removed."""
        store = self.output.store
        if is_done(store, cell.id):
            self.output.refresh([cell.id])
            return _Available.DONE, None
        record = current_lease(store, cell.id)
        if record is not None and not record.released and not self._has_ended(cell, record):
            return _Available.ELSEWHERE, record
        if cell.id in self._tried and store.read(cell_key(cell.id, CELL_FAILURE_NAME)) is not None:
            self.output.refresh([cell.id])
            return _Available.FAILED, None
        return _Available.FREE, record

    def _has_ended(self, cell: Cell, record: LeaseRecord) -> bool:
        if isinstance(self.output.store, DirectoryStore) and record.boot == boot_id():
            return not is_locked(self.output.cell_dir(cell.id).path / CELL_LOCK_NAME)
        return self._watch.has_ended(cell.id, record)

    async def _attempt(self, cell: Cell, allocation: Allocation) -> None:
        self.display.begin(cell)
        job = replace(self.job(cell), ended_lease=self._ended.get(cell.id))
        try:
            outcome = await self.executor.run(job, allocation, lambda progress: self.display.show(cell, progress))
        finally:
            self.executor.release(allocation)
            self.display.end(cell)
        self._settle(cell, outcome)

    def _settle(self, cell: Cell, outcome: CellOutcome) -> None:
        match outcome.verdict:
            case Verdict.DONE if outcome.summary is not None:
                self._show_done(cell, outcome.summary)
            case Verdict.DONE:  # by another runner meanwhile
                self._elsewhere[cell.id] = cell
            case Verdict.FAILED:
                self._fail(cell, outcome.failure or Failure(cause="unknown"))
            case Verdict.BUSY:
                self._elsewhere[cell.id] = cell
            case Verdict.LOST:
                self._losses[cell.id] += 1
                if self._losses[cell.id] > _LOSSES:
                    self._fail(cell, Failure(cause=f"lost its node {self._losses[cell.id]} times"))
                else:
                    self._elsewhere[cell.id] = cell

    def _show_stored(self, cell: Cell) -> None:
        directory = self.output.cell_dir(cell.id)
        try:
            with directory.damage_as_error():
                summary = directory.results().summary
                result_text(summary)
        except DamagedCellError as error:
            self._fail(cell, Failure.of(error))
        else:
            self._show_done(cell, summary)

    def _show_done(self, cell: Cell, summary: dict[str, Any]) -> None:
        self.display.done(cell, summary)
        self.display.end(cell)

    def _failure_elsewhere(self, cell: Cell) -> Failure:
        if self._failed_looks[cell.id]:
            return Failure(cause=f"{self.output.name} could not be read {self._failed_looks[cell.id]} times in a row")
        return self.output.cell_dir(cell.id).failure() or Failure(cause="failed elsewhere")

    def _fail(self, cell: Cell, failure: Failure) -> None:
        self.failed.append(cell)
        self.display.failed(cell, failure)
        self.display.end(cell)
