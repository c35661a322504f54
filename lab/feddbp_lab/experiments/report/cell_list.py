"""The cells of an experiment for the report page: when each was done, its result, time and traffic, and where it is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from feddbp_common.artifacts import SUMMARY_NAME
from feddbp_common.humanize import human_bytes, human_seconds
from feddbp_common.version import VERSION
from feddbp_lab.experiments.plan import Plan
from feddbp_lab.experiments.run.cell_dir import CellState
from feddbp_lab.experiments.run.output_dir import OutputDir
from feddbp_lab.results.damage import DAMAGE
from feddbp_lab.results.protocol import Reported
from feddbp_lab.results.run_results import read_summary


@dataclass(frozen=True, kw_only=True)
class CellEntry:
    """A cell that is done."""

    id: str
    link: str
    """Of its summary, from the page."""
    done_at: datetime
    result: str
    rounds: int
    seconds: float
    traffic: int

    @property
    def date(self) -> str:
        return f"{self.done_at:%Y-%m-%d %H:%M} UTC"

    @property
    def time(self) -> str:
        return human_seconds(self.seconds)

    @property
    def bytes(self) -> str:
        return human_bytes(self.traffic)


def cells_of(plan: Plan, output: OutputDir) -> list[CellEntry]:
    """Cells that are done and can be read, in the plan's order."""
    return [entry for cell_id in plan.cell_ids if (entry := _entry(cell_id, output)) is not None]


def overview(cells: Sequence[CellEntry], total: int) -> str:
    """How many cells are done, when they were, what they took, and the version that reports them."""
    done = f"{len(cells)} of {total} cells done"
    if not cells:
        return f"{done}. Report by feddbp {VERSION}."
    first, last = min(cell.done_at for cell in cells), max(cell.done_at for cell in cells)
    days = f"{first:%Y-%m-%d}" if first.date() == last.date() else f"{first:%Y-%m-%d} to {last:%Y-%m-%d}"
    seconds, traffic = sum(cell.seconds for cell in cells), sum(cell.traffic for cell in cells)
    cost = f"{human_seconds(seconds)} of runs, {human_bytes(traffic)} of traffic"
    return f"{done}, {days}: {cost}. Report by feddbp {VERSION}."


def _entry(cell_id: str, output: OutputDir) -> CellEntry | None:
    cell = output.cell_dir(cell_id)
    if cell.state is not CellState.DONE:
        return None
    path = cell.path / SUMMARY_NAME
    try:
        summary = read_summary(cell.path)
        return CellEntry(
            id=cell_id,
            link=Path(os.path.relpath(path, output.report_dir)).as_posix(),
            done_at=datetime.fromtimestamp(path.stat().st_mtime, UTC),
            result=str(Reported.of(summary)),
            rounds=int(summary["completed_rounds"]),
            seconds=float(summary["seconds"]),
            traffic=int(summary["bytes_up"]) + int(summary["bytes_down"]),
        )
    except DAMAGE:
        return None  # the section lists damaged cells as failed
