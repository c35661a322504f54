"""`feddbp experiment status`: which cells are done, running, failed or left."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from feddbp_lab.experiments.run.cell_dir import CellDir, CellState, DamagedCellError, Failure
from feddbp_lab.experiments.run.output_dir import OutputDir
from feddbp_lab.terminal.format import percent, plain_table

_WATCH_SECONDS: Final = 2.0


def watch_status(store: OutputDir, console: Console) -> None:
    """Shows where the cells stand until nobody works on them any more."""
    with Live(Group(*_view(store)), console=console, auto_refresh=False) as screen:
        while store.has_runner:
            time.sleep(_WATCH_SECONDS)
            screen.update(Group(*_view(store)), refresh=True)
        screen.update(Group(*_view(store)), refresh=True)  # how it ended


def print_status(store: OutputDir, console: Console) -> None:
    for piece in _view(store):
        # names and causes are long, and of more use in one piece
        console.print(piece, soft_wrap=isinstance(piece, Text))


def _view(store: OutputDir) -> Iterator[Table | Text]:
    told = as_dict(store)
    yield _counts(told)
    for name, cell in told["cells"].items():
        yield from _lines(name, cell)


def as_dict(store: OutputDir) -> dict[str, Any]:
    plans = store.plans()
    names = dict.fromkeys(name for plan in plans for name in plan.cell_ids)
    return {
        "experiments": [
            {"name": plan.name, "title": plan.title, "profile": plan.profile, "cells": plan.cell_ids} for plan in plans
        ],
        "cells": {name: _cell(store.folder(name)) for name in names},
    }


def _cell(folder: CellDir) -> dict[str, Any]:
    state = folder.state
    told: dict[str, Any] = {"state": state.value}
    try:
        if state is CellState.DONE:
            told["accuracy"] = folder.best_accuracy()
        elif state in (CellState.RUNNING, CellState.INTERRUPTED):
            told |= vars(folder.progress())
    except DamagedCellError as error:
        told["failure"] = vars(Failure.of(error))
    if state is CellState.FAILED and (failure := folder.failure()) is not None:
        told["failure"] = vars(failure)
    return told


def _counts(told: dict[str, Any]) -> Table:
    table = plain_table("experiment", "profile", "cells", *CellState)
    for experiment in told["experiments"]:
        counts = Counter(told["cells"][name]["state"] for name in experiment["cells"])
        table.add_row(
            Text(experiment["name"], style="bold"),
            experiment["profile"] or "",
            str(len(experiment["cells"])),
            *(str(counts[state]) if counts[state] else "" for state in CellState),
        )
    return table


def _lines(name: str, cell: dict[str, Any]) -> Iterator[Text]:
    if "rounds" in cell:
        rounds = f"{cell['completed_rounds']} of {cell['rounds']} rounds"
        yield Text(f"{cell['state']}  {name}  {rounds}, {percent(cell['accuracy'])}")
    if "failure" in cell:
        yield Text.assemble(("failed", "bold red"), f"  {name}\n        {cell['failure']['cause']}")
        for line in cell["failure"]["last_lines"][-3:]:
            yield Text(f"        | {line}", style="dim")
