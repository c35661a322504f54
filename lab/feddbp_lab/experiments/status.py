"""`feddbp experiment status`: which cells are done, running, failed or left."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from rich.console import Console
from rich.text import Text

from feddbp_lab.experiments.folder import CellState, DamagedError, Failure
from feddbp_lab.experiments.store import ExperimentStore
from feddbp_lab.plain_table import plain_table


def show_status(store: ExperimentStore, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(as_dict(store), indent=2))
        return
    console = Console()
    told = as_dict(store)
    table = plain_table("experiment", "profile", "cells", *CellState)
    for experiment in told["experiments"]:
        counts = Counter(told["cells"][name]["state"] for name in experiment["cells"])
        table.add_row(
            Text(experiment["name"], style="bold"),
            experiment["profile"] or "",
            str(len(experiment["cells"])),
            *(str(counts[state]) if counts[state] else "" for state in CellState),
        )
    console.print(table)
    for name, cell in told["cells"].items():
        if "rounds" in cell:
            _print(console, Text(f"{cell['state']}  {name}  {cell['rounds'][0]} of {cell['rounds'][1]} rounds"))
        if "failure" in cell:
            _print(console, Text.assemble(("failed", "bold red"), f"  {name}\n        {cell['failure']['cause']}"))
            for line in cell["failure"]["last_lines"][-3:]:
                _print(console, Text(f"        | {line}", style="dim"))


def _print(console: Console, text: Text) -> None:
    # names and causes are long, and of more use in one piece
    console.print(text, soft_wrap=True)


def as_dict(store: ExperimentStore) -> dict[str, Any]:
    plans = store.plans()
    names = dict.fromkeys(name for plan in plans for name in plan.cell_ids)
    return {
        "experiments": [
            {"name": plan.name, "title": plan.title, "profile": plan.profile, "cells": plan.cell_ids} for plan in plans
        ],
        "cells": {name: _cell(store, name) for name in names},
    }


def _cell(store: ExperimentStore, name: str) -> dict[str, Any]:
    folder = store.folder(name)
    told: dict[str, Any] = {"state": folder.state.value}
    if folder.state in (CellState.RUNNING, CellState.INTERRUPTED):
        try:
            told["rounds"] = folder.progress()
        except DamagedError as error:
            told["failure"] = vars(Failure.of(error))
    failure = folder.failure()
    if failure is not None and folder.state is CellState.FAILED:
        told["failure"] = vars(failure)
    return told
