"""`feddbp experiment status`: prints which cells are done, running, failed or waiting."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from feddbp_common.errors import FedDBPError
from feddbp_common.evaluation import accuracy_over_clients
from feddbp_lab.experiments.run.cell_dir import CellDir, CellState, DamagedCellError, Failure
from feddbp_lab.experiments.run.output_dir import OutputDir
from feddbp_lab.terminal.format import plain_table

_WATCH_SECONDS: Final = 2.0
_DAMAGED: Final = "damaged"
"""Shown instead of the state of a cell whose files cannot be read; of its metrics only whether there are any."""


def watch_status(output: OutputDir, console: Console) -> None:
    """Prints the status of the cells again and again until no runner uses the directory."""
    with Live(Group(*_view(output)), console=console, auto_refresh=False) as screen:
        while output.has_runner:
            time.sleep(_WATCH_SECONDS)
            with suppress(OSError):  # an address that does not answer for an instant
                output.refresh()
            screen.update(Group(*_view(output)), refresh=True)
        screen.update(Group(*_view(output)), refresh=True)  # the state in which the runner ended


def print_status(output: OutputDir, console: Console) -> None:
    for piece in _view(output):
        # names and causes are long; as one line they can be copied and searched
        console.print(piece, soft_wrap=isinstance(piece, Text))


def as_dict(output: OutputDir) -> dict[str, Any]:
    """The JSON output."""
    plans = output.plans()
    ids = dict.fromkeys(cell_id for plan in plans for cell_id in plan.cell_ids)
    return {
        "experiments": [
            {"name": plan.name, "title": plan.title, "profile": plan.profile, "cells": plan.cell_ids} for plan in plans
        ],
        "cells": {cell_id: _cell_as_dict(output.cell_dir(cell_id)) for cell_id in ids},
    }


def _cell_as_dict(cell: CellDir) -> dict[str, Any]:
    state = cell.state
    content: dict[str, Any] = {"state": state.value}
    try:
        if state is CellState.DONE:
            content |= vars(cell.reported())
        elif state in (CellState.RUNNING, CellState.INTERRUPTED):
            content |= vars(cell.progress())
    except FedDBPError as error:  # damaged, or of a configuration that this version refuses
        if isinstance(error, DamagedCellError) and state is not CellState.RUNNING:
            content["state"] = _DAMAGED
        content["failure"] = vars(Failure.of(error))
    content |= _attempts_as_dict(cell)
    if state is CellState.FAILED and (failure := cell.failure()) is not None:
        content["failure"] = vars(failure)
    return content


def _attempts_as_dict(cell: CellDir) -> dict[str, Any]:
    """The machine of the newest attempt and its number, as far as they were recorded."""
    lease = cell.lease()
    node, attempts = (lease.node, lease.epoch) if lease is not None else (cell.node(), cell.attempts())
    return {name: value for name, value in (("node", node), ("attempts", attempts)) if value is not None}


def _view(output: OutputDir) -> Iterator[Table | Text]:
    status = as_dict(output)
    yield _counts_table(status)
    for cell_id, cell in status["cells"].items():
        yield from _cell_lines(cell_id, cell)


def _counts_table(status: dict[str, Any]) -> Table:
    states = [state.value for state in CellState]
    if any(cell["state"] == _DAMAGED for cell in status["cells"].values()):
        states.append(_DAMAGED)
    table = plain_table("experiment", "profile", "cells", *states)
    for experiment in status["experiments"]:
        counts = Counter(status["cells"][cell_id]["state"] for cell_id in experiment["cells"])
        table.add_row(
            Text(experiment["name"], style="bold"),
            experiment["profile"] or "",
            str(len(experiment["cells"])),
            *(str(counts[state]) if counts[state] else "" for state in states),
        )
    return table


def _cell_lines(cell_id: str, cell: dict[str, Any]) -> Iterator[Text]:
    if "rounds" in cell:
        rounds = f"{cell['completed_rounds']} of {cell['rounds']} rounds"
        over = accuracy_over_clients(cell["accuracy"], cell["clients"], cell["expected_clients"])
        where = f" on {cell['node']}" if cell.get("node") and cell["state"] == CellState.RUNNING else ""
        again = f", attempt {cell['attempts']}" if cell.get("attempts", 1) > 1 else ""
        yield Text(f"{cell['state']}  {cell_id}  {rounds}, {over}{where}{again}")
    if "failure" in cell:
        again = f"  after {cell['attempts']} attempts" if cell.get("attempts", 1) > 1 else ""
        label = _DAMAGED if cell["state"] == _DAMAGED else "failed"
        yield Text.assemble((label, "bold red"), f"  {cell_id}{again}\n        {cell['failure']['cause']}")
        for line in cell["failure"]["last_lines"][-3:]:
            yield Text(f"        | {line}", style="dim")
