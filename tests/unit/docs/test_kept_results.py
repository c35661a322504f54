"""The cells under docs/results: a runner continues their grids, and reports can be made of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from feddbp_common.artifacts import CURVES_NAME, PACKED_METRICS_NAME, SUMMARY_NAME
from feddbp_common.config.run import RunConfig
from feddbp_lab.cli import main
from feddbp_lab.dashboard.stored import StoredRun
from feddbp_lab.experiments.analysis.outcomes import Outcomes
from feddbp_lab.experiments.cell import Cell
from feddbp_lab.experiments.expansion import expand
from feddbp_lab.experiments.run.cell_dir import CellState
from feddbp_lab.experiments.run.output_dir import OutputDir
from feddbp_lab.experiments.spec import load_experiment
from feddbp_lab.results.run_files import RunFiles, find_runs

KEPT = OutputDir(Path(__file__).parents[3] / "docs" / "results" / "quick")
PLANS = {plan.name: plan for plan in KEPT.plans()}
CELLS = sorted((KEPT.path / "cells").iterdir())


def test_every_cell_has_the_name_that_its_configuration_has_in_this_version() -> None:
    for path in CELLS:
        run = RunConfig.model_validate(json.loads((path / "config.json").read_text(encoding="utf-8")))
        assert Cell(run).id == path.name


@pytest.mark.parametrize("name", PLANS)
def test_a_runner_takes_the_cells_for_those_of_its_grid(name: str) -> None:
    plan = PLANS[name]
    expanded = expand(load_experiment(name), seeds=plan.seeds, profile=plan.profile)
    assert expanded.plan.cell_ids == plan.cell_ids
    done = [cell_id for cell_id in plan.cell_ids if KEPT.cell_dir(cell_id).state is CellState.DONE]
    assert done


@pytest.mark.parametrize("name", PLANS)
def test_a_report_reads_the_cells_of_a_plan(name: str) -> None:
    outcomes = Outcomes.read(PLANS[name], KEPT)
    assert not outcomes.failures


def test_every_cell_belongs_to_a_plan() -> None:
    planned = {cell_id for plan in PLANS.values() for cell_id in plan.cell_ids}
    assert {path.name for path in CELLS} <= planned


def test_a_kept_cell_can_be_reported_compared_and_opened_in_the_dashboard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = [path for path in CELLS if "cifar10-a0.1" in path.name][:2]
    for path in cells:
        shutil.copytree(path, tmp_path / path.name)
    copies = find_runs(tmp_path)
    assert [path.name for path in copies] == [path.name for path in cells]
    assert main(["report", str(copies[0])]) == 0
    assert f"{SUMMARY_NAME}, {PACKED_METRICS_NAME}, {CURVES_NAME}" in " ".join(capsys.readouterr().out.split())
    assert main(["compare", "--anyway", *map(str, copies)]) == 0
    results = RunFiles(copies[0]).results()
    page = StoredRun(RunFiles(copies[0])).model
    assert len(page.reports) == len(results.metrics) > 0
