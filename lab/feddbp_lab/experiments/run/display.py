"""How far the cells are: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from feddbp.v1 import federation_pb2 as pb
from feddbp_lab.experiments.cell import Cell
from feddbp_lab.experiments.run.cell_dir import Failure
from feddbp_lab.terminal.format import human_seconds, percent
from feddbp_lab.terminal.live import rounds_done

_ENOUGH_TO_GO_BY: Final = 0.01
"""Share of the work that must be done before its pace is worth anything."""
_LINE_SECONDS: Final = 60.0


class Display(Protocol):
    """Is told what happens."""

    def begin(self, cell: Cell) -> None: ...

    def show(self, cell: Cell, status: pb.RunStatus) -> None: ...

    def done(self, cell: Cell, summary: dict[str, Any]) -> None: ...

    def failed(self, cell: Cell, failure: Failure) -> None: ...

    def end(self, cell: Cell) -> None:
        """Nothing more comes of the cell, also when it was interrupted."""


class Workload:
    """How much of all cells is done, and how long the rest will take at the pace so far."""

    def __init__(self, cells: Sequence[Cell], clock: Callable[[], float] = time.monotonic) -> None:
        self._cost = {cell.id: cell.cost for cell in cells}
        self._share: dict[str, float] = {}
        self._first_share: dict[str, float] = {}
        """What was already there when a cell was taken up: it says nothing about the pace."""
        self._clock = clock
        self._began = clock()
        self.cells = len(cells)
        self.over = 0

    def advance(self, cell: Cell, share: float) -> None:
        self._first_share.setdefault(cell.id, share)
        self._share[cell.id] = share

    def finish(self, cell: Cell) -> None:
        self._first_share.setdefault(cell.id, 0.0)
        self._share[cell.id] = 1.0
        self.over += 1

    def give_up(self, cell: Cell) -> None:
        """As if it had never been there: a failure comes sooner than a result would have, and says nothing of pace."""
        self._cost[cell.id] = 0.0
        self.over += 1

    @property
    def total(self) -> float:
        return sum(self._cost.values())

    @property
    def done(self) -> float:
        return sum(self._cost[name] * share for name, share in self._share.items())

    def seconds(self) -> float:
        return self._clock() - self._began

    def seconds_left(self) -> float | None:
        here = self.done - sum(self._cost[name] * share for name, share in self._first_share.items())
        if here < _ENOUGH_TO_GO_BY * self.total or self.over == self.cells:
            return None
        return self.seconds() / here * (self.total - self.done)

    def __str__(self) -> str:
        left = self.seconds_left()
        told = f"{self.over} of {self.cells} cells, {human_seconds(self.seconds())}"
        return told if left is None else f"{told}, about {human_seconds(left)} left"


@dataclass(kw_only=True)
class _CellDisplay(ABC):
    """What both displays keep: the workload, and the rounds of the cells that run."""

    workload: Workload
    _rounds: dict[str, tuple[Cell, float]] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...

    def begin(self, cell: Cell) -> None:
        self._rounds[cell.id] = cell, 0.0

    def show(self, cell: Cell, status: pb.RunStatus) -> None:
        if status.phase == pb.PHASE_WAITING:
            return
        rounds = rounds_done(status)
        self._rounds[cell.id] = cell, rounds
        self.workload.advance(cell, rounds / max(1, cell.run.rounds))

    def done(self, cell: Cell, summary: dict[str, Any]) -> None:
        self.workload.finish(cell)

    def failed(self, cell: Cell, failure: Failure) -> None:
        self.workload.give_up(cell)

    def end(self, cell: Cell) -> None:
        self._rounds.pop(cell.id, None)


def _result(summary: dict[str, Any]) -> str:
    best = summary["accuracy"]["best"]
    return f"{percent(best['weighted'] if best else None)} in {human_seconds(summary['seconds'])}"


@dataclass(kw_only=True)
class PlainLines(_CellDisplay):
    """A line when a cell begins and ends, and one a minute about those that run."""

    output: TextIO
    _ticking: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._ticking = asyncio.create_task(self._tick())

    def stop(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()

    def begin(self, cell: Cell) -> None:
        super().begin(cell)
        self._print(f"begin   {cell.id}")

    def done(self, cell: Cell, summary: dict[str, Any]) -> None:
        super().done(cell, summary)
        self._print(f"done    {cell.id}: {_result(summary)}  [{self.workload}]")

    def failed(self, cell: Cell, failure: Failure) -> None:
        super().failed(cell, failure)
        self._print(f"failed  {cell.id}: {failure.cause}  [{self.workload}]")

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_LINE_SECONDS)
            running = (f"{cell.id} {int(rounds)}/{cell.run.rounds}" for cell, rounds in self._rounds.values())
            self._print(f"running {', '.join(running)}  [{self.workload}]")

    def _print(self, text: str) -> None:
        print(text, file=self.output, flush=True)


@dataclass(kw_only=True)
class LiveBars(_CellDisplay):
    """One bar for every cell that runs, and one for all; what is over is told above them."""

    console: Console
    _tasks: dict[str, TaskID] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[told]}", justify="right", style="dim"),
            console=self.console,
            expand=True,
            transient=True,
        )
        self._overall = self.bars.add_task("all", total=self.workload.total, told="")

    def start(self) -> None:
        self.bars.start()

    def stop(self) -> None:
        self.bars.stop()

    def begin(self, cell: Cell) -> None:
        super().begin(cell)
        self._tasks[cell.id] = self.bars.add_task(cell.title, total=cell.run.rounds, told="starting")
        self._update()

    def show(self, cell: Cell, status: pb.RunStatus) -> None:
        super().show(cell, status)
        rounds = self._rounds[cell.id][1]
        number = min(int(rounds) + 1, cell.run.rounds)
        self.bars.update(self._tasks[cell.id], completed=rounds, told=f"round {number} of {cell.run.rounds}")
        self._update()

    def done(self, cell: Cell, summary: dict[str, Any]) -> None:
        super().done(cell, summary)
        self.bars.console.print(Text.assemble(("✓ ", "green"), cell.title, (f"  {_result(summary)}", "dim")))
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
        self.bars.update(self._overall, completed=load.done, total=load.total, told=str(load))
