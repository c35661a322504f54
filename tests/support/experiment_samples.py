"""Experiments with cells that have written results, or a failure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from feddbp_common.artifacts import METRICS_NAME, SUMMARY_NAME
from feddbp_lab.experiments.cell import Cell
from feddbp_lab.experiments.expansion import Expansion, expand
from feddbp_lab.experiments.run.cell_dir import Failure
from feddbp_lab.experiments.run.output_dir import OutputDir
from feddbp_lab.experiments.spec import ExperimentSpec

Accuracy = Callable[[Cell, int], float]
"""The accuracy of a cell after a number of rounds, between 0 and 1."""

SMALL: dict[str, Any] = {
    "name": "small",
    "title": "A small grid",
    "base": {"clients": 2, "rounds": 2},
    "axes": {"method": ["local", "fedproto", "feddbp"], "data": {"alpha": [0.1, 1.0]}},
    "report": {"rows": "method", "columns": "data.alpha", "compare": "fedproto"},
}


def spec(**changed: Any) -> ExperimentSpec:
    return ExperimentSpec.model_validate({**SMALL, **changed})


def planned(directory: Path, *, seeds: Iterable[int] = (0,), **changed: Any) -> tuple[OutputDir, Expansion]:
    """An output directory with a plan of which nothing has been run."""
    output_dir, expanded = OutputDir(directory), expand(spec(**changed), seeds=seeds)
    output_dir.save_plan(expanded.plan)
    return output_dir, expanded


def finish(output_dir: OutputDir, cell: Cell, accuracy: Accuracy) -> None:
    """Writes the results of a run with two clients, the second with three times the test samples of the first."""
    directory = output_dir.cell_dir(cell.id)
    directory.path.mkdir(parents=True, exist_ok=True)
    rules = {"feddbp": ("prototype_normalized", "prototype", "head")}.get(cell.run.method, ("head",))
    lines = []
    for number in range(cell.run.rounds + 1):
        mean = accuracy(cell, number)
        # the clients differ, and their mean over samples is the given accuracy
        for client, (samples, share) in enumerate(((10, mean - 0.03), (30, mean + 0.01))):
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
    (directory.path / METRICS_NAME).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (directory.path / SUMMARY_NAME).write_text(json.dumps(summary))


def fail(output_dir: OutputDir, cell: Cell, failure: Failure) -> None:
    directory = output_dir.cell_dir(cell.id)
    directory.path.mkdir(parents=True, exist_ok=True)
    directory.prepare(cell.run)
    directory.record_failure(failure)
