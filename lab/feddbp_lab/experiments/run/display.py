"""Progress of the cells of a campaign: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import asyncio
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from feddbp_common.humanize import human_seconds
from feddbp_lab.experiments.cell import Cell
from feddbp_lab.experiments.run.attempt import CellProgressReport
from feddbp_lab.experiments.run.cell_dir import Failure
from feddbp_lab.results.protocol import Reported

_SHARE_FOR_ESTIMATE: Final = 0.01
"""Share of the work that must be done before the time left is estimated from its pace."""
_LEAST_SECONDS_LEFT: Final = 1.0
"""Shown at least: after the last round, processes still end and results are collected."""
_LINE_SECONDS: Final = 60.0


class CellDisplay(Protocol):
    """Receives what happens to each cell."""

    def begin(self, cell: Cell) -> None: ...

    def show(self, cell: Cell, progress: CellProgressReport) -> None: ...

    def done(self, cell: Cell, summary: dict[str, Any]) -> None: ...

    def failed(self, cell: Cell, failure: Failure) -> None: ...

    def end(self, cell: Cell) -> None:
        """The cell is no longer running: it is done, failed or interrupted."""


class Workload:
    """How much of the work of all cells is done, and an estimate of the time left."""

    def __init__(self, cells: Sequence[Cell], clock: Callable[[], float] = time.monotonic) -> None:
        self._cost = {cell.id: cell.cost for cell in cells}
        self._share: dict[str, float] = {}
        self._first_share: dict[str, float] = {}
        """What an earlier runner had done of a resumed cell; not part of this runner's pace."""
        self._clock = clock
        self._started = clock()
        self.cells = len(cells)
        self.over = 0

    def advance(self, cell: Cell, share: float) -> None:
        if share:  # an attempt reports nothing done until its server says how far the run is
            self._first_share.setdefault(cell.id, share)
        self._share[cell.id] = share

    def finish(self, cell: Cell) -> None:
        self._first_share.setdefault(cell.id, 0.0)
        self._share[cell.id] = 1.0
        self.over += 1

    def drop(self, cell: Cell) -> None:
        """Removes a failed cell from the estimate: it took less time than a result would have."""
        self._cost[cell.id] = 0.0
        self.over += 1

    @property
    def total(self) -> float:
        return sum(self._cost.values())

    @property
    def done(self) -> float:
        return sum(self._cost[name] * share for name, share in self._share.items())

    def seconds(self) -> float:
        return self._clock() - self._started

    def seconds_left(self) -> float | None:
        done_here = self.done - sum(self._cost[name] * share for name, share in self._first_share.items())
        if done_here < _SHARE_FOR_ESTIMATE * self.total or self.over == self.cells:
            return None
        return self.seconds() / done_here * (self.total - self.done)

    def __str__(self) -> str:
        left = self.seconds_left()
        text = f"{self.over} of {self.cells} cells, {human_seconds(self.seconds())}"
        return text if left is None or left < _LEAST_SECONDS_LEFT else f"{text}, about {human_seconds(left)} left"


@dataclass(kw_only=True)
class _DisplayBase(ABC):
    """Common to both displays: the workload, and the progress of each running cell."""

    workload: Workload
    _rounds: dict[str, tuple[Cell, CellProgressReport]] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def begin(self, cell: Cell) -> None: ...

    def show(self, cell: Cell, progress: CellProgressReport) -> None:
        self._rounds[cell.id] = cell, progress
        self.workload.advance(cell, progress.rounds / max(1, cell.run.rounds))

    def done(self, cell: Cell, summary: dict[str, Any]) -> None:
        self.workload.finish(cell)

    def failed(self, cell: Cell, failure: Failure) -> None:
        self.workload.drop(cell)

    def end(self, cell: Cell) -> None:
        self._rounds.pop(cell.id, None)


@dataclass(kw_only=True)
class PlainCellDisplay(_DisplayBase):
    """Prints a line when a cell begins and when it ends, and one per minute about the running ones."""

    output: TextIO
    _printing: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._printing = asyncio.create_task(self._print_running())

    def stop(self) -> None:
        if self._printing is not None:
            self._printing.cancel()

    def begin(self, cell: Cell) -> None:
        """The line is printed once the cell has a machine."""

    def show(self, cell: Cell, progress: CellProgressReport) -> None:
        _, before = self._rounds.get(cell.id, (None, None))
        super().show(cell, progress)
        if before is None or (before.node, before.attempt) != (progress.node, progress.attempt):
            self._print(f"{'other' if progress.is_others else 'begin':<7} {cell.id}{_where(progress)}")

    def done(self, cell: Cell, summary: dict[str, Any]) -> None:
        super().done(cell, summary)
        self._print(f"done    {cell.id}: {result_text(summary)}  [{self.workload}]")

    def failed(self, cell: Cell, failure: Failure) -> None:
        super().failed(cell, failure)
        self._print(f"failed  {cell.id}: {failure.cause}  [{self.workload}]")

    async def _print_running(self) -> None:
        while True:
            await asyncio.sleep(_LINE_SECONDS)
            running = (
                f"{cell.id} {int(progress.rounds)}/{cell.run.rounds}{_where(progress)}"
                for cell, progress in self._rounds.values()
            )
            self._print(f"running {', '.join(running)}  [{self.workload}]")

    def _print(self, text: str) -> None:
        print(text, file=self.output, flush=True)


@dataclass(kw_only=True)
class LiveCellDisplay(_DisplayBase):
    """A bar per running cell and one for all; lines about cells that have ended are printed above."""

    console: Console
    _tasks: dict[str, TaskID] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[detail]}", justify="right", style="dim"),
            console=self.console,
            expand=True,
            transient=True,
        )
        self._overall = self.bars.add_task("all", total=self.workload.total, detail="")

    def start(self) -> None:
        self.bars.start()

    def stop(self) -> None:
        self.bars.stop()

    def begin(self, cell: Cell) -> None:
        self._tasks[cell.id] = self.bars.add_task(cell.title, total=cell.run.rounds, detail="starting")
        self._update()

    def show(self, cell: Cell, progress: CellProgressReport) -> None:
        super().show(cell, progress)
        if cell.id not in self._tasks:
            self.begin(cell)
        number = min(int(progress.rounds) + 1, cell.run.rounds)
        detail = f"round {number} of {cell.run.rounds}{_where(progress)}"
        self.bars.update(self._tasks[cell.id], completed=progress.rounds, detail=detail)
        self._update()

    def done(self, cell: Cell, summary: dict[str, Any]) -> None:
        super().done(cell, summary)
        self.bars.console.print(Text.assemble(("✓ ", "green"), cell.title, (f"  {result_text(summary)}", "dim")))
        self._update()

    def failed(self, cell: Cell, failure: Failure) -> None:
        super().failed(cell, failure)
        self.bars.console.print(Text.assemble(("✗ ", "red"), cell.title, (f"  {failure.cause}", "red")))
        self._update()

    def end(self, cell: Cell) -> None:
        super().end(cell)
        bar = self._tasks.pop(cell.id, None)
        if bar is not None:
            self.bars.remove_task(bar)

    def _update(self) -> None:
        load = self.workload
        self.bars.update(self._overall, completed=load.done, total=load.total, detail=str(load))


def _where(progress: CellProgressReport) -> str:
    """The machine, if it is another, the runner, if it is another, and the attempt, if it is not the first."""
    node = f" on {progress.node}" if progress.node != socket.gethostname() else ""
    other = " by another runner" if progress.is_others else ""
    return node + other + (f", attempt {progress.attempt}" if progress.attempt > 1 else "")


def result_text(summary: dict[str, Any]) -> str:
    """The result of a cell and its time; raises KeyError or TypeError for a summary that lacks something."""
    return f"{Reported.of(summary)} in {human_seconds(summary['seconds'])}"
