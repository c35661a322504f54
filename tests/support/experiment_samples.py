"""Cells with handmade results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from feddbp_lab.experiments.cell import Cell
from feddbp_lab.experiments.expansion import Expansion, expand
from feddbp_lab.experiments.run.cell_dir import Failure
from feddbp_lab.experiments.run.output_dir import OutputDir
from feddbp_lab.experiments.spec import ExperimentSpec

Accuracy = Callable[[Cell, int], float]
"""Of a cell after so many rounds, between 0 and 1."""

SMALL = {
    "name": "small",
    "title": "A small grid",
    "base": {"clients": 2, "rounds": 2},
    "axes": {"method": ["local", "fedproto", "feddbp"], "data": {"alpha": [0.1, 1.0]}},
    "report": {"rows": "method", "columns": "data.alpha", "compare": "fedproto"},
}


def spec(**changed: Any) -> ExperimentSpec:
    return ExperimentSpec.model_validate({**SMALL, **changed})


def planned(directory: Path, *, seeds: Iterable[int] = (0,), **changed: Any) -> tuple[OutputDir, Expansion]:
    """A store that knows a plan, of which nothing has been run."""
    store, expanded = OutputDir(directory), expand(spec(**changed), seeds=seeds)
    store.keep(expanded.plan)
    return store, expanded


def finish(store: OutputDir, cell: Cell, accuracy: Accuracy) -> None:
    """As if the cell had been run: two clients, of which the second has three times the test samples of the first."""
    folder = store.folder(cell.id)
    folder.path.mkdir(parents=True, exist_ok=True)
    rules = {"feddbp": ("prototype_normalized", "prototype", "head")}.get(cell.run.method, ("head",))
    lines = []
    for number in range(cell.run.rounds + 1):
        right = accuracy(cell, number)
        # apart from each other, but together they are as told
        for client, (samples, share) in enumerate(((10, right - 0.03), (30, right + 0.01))):
            accuracies = {rule: share - 0.1 * place for place, rule in enumerate(rules)}
            lines.append(
                {
                    "client": client,
                    "round": number,
                    "inference": rules[0],
                    "accuracies": accuracies,
                    "test_samples": samples,
                }
            )
    summary = {
        "config": cell.run.model_dump(mode="json"),
        "per_client": [{"train_samples": 30, "test_samples": 10}, {"train_samples": 90, "test_samples": 30}],
    }
    (folder.path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (folder.path / "summary.json").write_text(json.dumps(summary))


def fail(store: OutputDir, cell: Cell, failure: Failure) -> None:
    folder = store.folder(cell.id)
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.begin(cell.run)
    folder.fail(failure)
