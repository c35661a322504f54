"""Experiments with cells that have written results, or a failure."""

from __future__ import annotations

import json
import os
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

SAMPLES = (10, 30)
"""Test samples of the two clients."""
DONE_AT = 1_800_000_000
"""When a cell was done, on the report's page."""

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


def finish(
    output_dir: OutputDir,
    cell: Cell,
    accuracy: Accuracy,
    *,
    validation: Accuracy | None = None,
    core_seconds: float | None = None,
    missed: Iterable[tuple[int, int]] = (),
) -> None:
    """Writes the results of a run with two clients, the second with three times the test samples of the first.

    A run with validation samples has as many of them as test samples, with the accuracy `validation`. A quarter of the
    test samples are of rare classes, on which the accuracy is half of the client's. `missed` are pairs of a client and
    a round on which it did not report.
    """
    directory = output_dir.cell_dir(cell.id)
    directory.path.mkdir(parents=True, exist_ok=True)
    rules = {"feddbp": ("prototype_normalized", "prototype", "head")}.get(cell.run.method, ("head",))
    rounds = range(cell.run.rounds + 1)
    shares = {number: _by_client(accuracy(cell, number)) for number in rounds}
    held_out = {number: _by_client((validation or accuracy)(cell, number)) for number in rounds}
    lines = []
    for number in rounds:
        for client, samples in enumerate(SAMPLES):
            if (client, number) in missed:
                continue
            line = {
                "client": client,
                "round": number,
                "inference": rules[0],
                "accuracy": shares[number][client],
                "accuracies": _by_rule(rules, shares[number][client]),
                "test_samples": samples,
                "losses": {"total": 1 / (number + 1)} if number < cell.run.rounds else {},
                "seconds": {"evaluate": 0.1, "train": 1.0, "collect": 0.1},
                "bytes_up": 1000,
                "bytes_down": 500,
                "rare_test_samples": samples // 4,
                "rare_accuracy": shares[number][client] / 2,
            }
            if cell.run.training.validation:
                line["validation_samples"] = samples
                line["validation_accuracies"] = _by_rule(rules, held_out[number][client])
            lines.append(line)
    summary = {
        "config": json.loads(cell.run.canonical_json()),
        "per_client": [
            {"client": client, "train_samples": 3 * samples, "test_samples": samples, "accuracy": 0.5}
            for client, samples in enumerate(SAMPLES)
        ],
        "clients": 2,
        "accuracy": {name: {"weighted": 0.5, "clients": 2} for name in ("best", "last", "chosen")},
        "seconds": 42.0,
        "completed_rounds": cell.run.rounds,
        "bytes_up": 2_000_000 * cell.run.rounds,
        "bytes_down": 1_000_000 * cell.run.rounds,
    }
    if core_seconds is not None:
        directory.add_cost(core_seconds)
    (directory.path / METRICS_NAME).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (directory.path / SUMMARY_NAME).write_text(json.dumps(summary))
    os.utime(directory.path / SUMMARY_NAME, (DONE_AT, DONE_AT))


def _by_client(mean: float) -> tuple[float, float]:
    """The clients differ, and their mean over samples is the given accuracy."""
    return mean - 0.03, mean + 0.01


def _by_rule(rules: tuple[str, ...], accuracy: float) -> dict[str, float]:
    return {rule: accuracy - 0.1 * place for place, rule in enumerate(rules)}


def fail(output_dir: OutputDir, cell: Cell, failure: Failure) -> None:
    directory = output_dir.cell_dir(cell.id)
    directory.path.mkdir(parents=True, exist_ok=True)
    directory.prepare(cell.run)
    directory.record_failure(failure)
