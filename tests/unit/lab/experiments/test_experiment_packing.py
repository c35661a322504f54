"""`feddbp experiment pack`: finished cells in a small form, from which reports are made and experiments continue."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from experiment_samples import SAMPLES, fail, finish, planned, spec

from feddbp_common.artifacts import CELL_CONFIG_NAME, CELL_COST_NAME, METRICS_NAME, PACKED_METRICS_NAME, SUMMARY_NAME
from feddbp_common.errors import ConfigurationError, FedDBPError
from feddbp_lab.commands import experiment
from feddbp_lab.experiments.analysis.outcomes import CellResult
from feddbp_lab.experiments.cell import Cell
from feddbp_lab.experiments.expansion import expand
from feddbp_lab.experiments.report.build import write_report
from feddbp_lab.experiments.run.cell_dir import CellState, DamagedCellError, Failure
from feddbp_lab.experiments.run.output_dir import OutputDir
from feddbp_lab.experiments.run.packing import pack


def accuracy(cell: Cell, rounds: int) -> float:
    return 0.1 * rounds + 0.05 * len(cell.run.method)


def grid(directory: Path, *, done: int) -> tuple[OutputDir, list[str]]:
    """An experiment of six cells, of which the first are done; in each, a client misses the last evaluation."""
    output, expanded = planned(directory)
    cells = list(expanded.cells.values())
    for cell in cells[:done]:
        finish(output, cell, accuracy, core_seconds=60, missed=[(1, 2)])
        output.cell_dir(cell.id).prepare(cell.run)
    return output, [cell.id for cell in cells]


def test_a_report_of_packed_cells_is_the_report_of_the_cells(tmp_path: Path) -> None:
    source, _ = grid(tmp_path / "source", done=6)
    target = OutputDir(tmp_path / "packed")
    assert len(pack(source, target)) == 6
    pages = [write_report(output).page for output in (source, target)]
    for name in ("small.md", "small.csv", "small-clients.csv"):
        texts = [page.with_name(name).read_text() for page in pages]
        assert texts[0] == texts[1], name


def test_a_client_that_missed_a_round_counts_in_a_packed_cell_too(tmp_path: Path) -> None:
    source, (cell_id, *_) = grid(tmp_path / "source", done=1)
    packed, again = OutputDir(tmp_path / "packed"), OutputDir(tmp_path / "again")
    pack(source, packed)
    pack(packed, again)
    for output in (source, packed, again):
        results = output.cell_dir(cell_id).results()
        last = CellResult.read(output.cell_dir(cell_id)).rules["head"].last
        # of `local`: 0.45 after two rounds and 0.35 after one, by client 0.03 less and 0.01 more
        assert last.test.correct == {0: pytest.approx(SAMPLES[0] * 0.42), 1: pytest.approx(SAMPLES[1] * 0.36)}
        assert [results.trained_rounds(client) for client in (0, 1)] == [[1, 2], [1, 2]]
        assert list(results.accuracies(1)) == [1]


def test_cells_that_were_packed_without_what_was_trained_count_every_round(tmp_path: Path) -> None:
    source, (cell_id, *_) = grid(tmp_path / "source", done=1)
    packed, again = OutputDir(tmp_path / "packed"), OutputDir(tmp_path / "again")
    pack(source, packed)
    path = packed.cell_dir(cell_id).path / PACKED_METRICS_NAME
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    for line in lines:
        del line["trained"]
    path.write_bytes(gzip.compress("".join(f"{json.dumps(line)}\n" for line in lines).encode()))
    pack(packed, again)
    for output in (packed, again):
        assert output.cell_dir(cell_id).results().trained_rounds(0) == [1, 2]


def test_only_finished_cells_are_packed_and_only_once(tmp_path: Path) -> None:
    source, ids = grid(tmp_path / "source", done=2)
    _, expanded = planned(tmp_path / "source")
    fail(source, list(expanded.cells.values())[2], Failure(cause="training diverged"))
    target = OutputDir(tmp_path / "packed")
    assert pack(source, target) == ids[:2]
    first = {path: path.read_bytes() for path in target.path.rglob("*") if path.is_file()}
    assert pack(source, target) == []
    assert first == {path: path.read_bytes() for path in target.path.rglob("*") if path.is_file()}
    states = [target.cell_dir(cell_id).state for cell_id in ids]
    assert states == [CellState.DONE] * 2 + [CellState.WAITING] * 4  # a runner begins with the third
    files = sorted(path.name for path in target.cell_dir(ids[0]).path.iterdir())
    assert files == ["config.json", "cost.json", "metrics.jsonl.gz", "summary.json"]


def seeds_run(directory: Path, *seeds: int, **changed: Any) -> OutputDir:
    """The small experiment, run and planned with these seeds."""
    output, expanded = planned(directory, seeds=seeds, **changed)
    output.save_plan(expanded.plan, expanded.cells.values())
    for cell in expanded.cells.values():
        finish(output, cell, accuracy)
        output.cell_dir(cell.id).prepare(cell.run)
    return output


def test_seeds_that_were_packed_earlier_stay_in_the_plan_and_in_the_list_of_cells(tmp_path: Path) -> None:
    target = seeds_run(tmp_path / "target", 0, 2)
    assert len(pack(seeds_run(tmp_path / "source", 1), target)) == 6
    expected = expand(spec(), seeds=(0, 1, 2))
    assert target.plan("small") == expected.plan
    assert [cell.id for cell in target.planned_cells("small")] == list(expected.cells)


def test_a_grid_that_has_grown_replaces_the_kept_one_of_the_same_seeds(tmp_path: Path) -> None:
    target = seeds_run(tmp_path / "target", 0)
    grown = {"axes": {"method": ["local", "fedproto", "feddbp", "fd"], "data": {"alpha": [0.1, 1.0]}}}
    assert len(pack(seeds_run(tmp_path / "source", 0, **grown), target)) == 2
    assert target.plan("small") == expand(spec(**grown), seeds=(0,)).plan


def test_a_planned_seed_of_which_nothing_was_run_is_replaced(tmp_path: Path) -> None:
    target, _ = planned(tmp_path / "target", seeds=(7,))
    pack(seeds_run(tmp_path / "source", 1), target)
    plan = target.plan("small")
    assert plan is not None
    assert plan.seeds == (1,)


def test_a_list_of_cells_that_cannot_be_completed_is_removed(tmp_path: Path) -> None:
    target = seeds_run(tmp_path / "target", 0)
    source = seeds_run(tmp_path / "source", 1)
    (source.path / "experiments" / "cells" / "small.json").unlink()
    pack(source, target)
    with pytest.raises(ConfigurationError, match="run feddbp experiment plan again"):
        target.planned_cells("small")


def test_the_small_form_has_no_list_of_cells(tmp_path: Path) -> None:
    target = OutputDir(tmp_path / "packed")
    pack(seeds_run(tmp_path / "source", 0), target)
    assert [path.name for path in (target.path / "experiments").iterdir()] == ["small.json"]


def test_an_experiment_with_other_options_or_cells_is_not_packed_into_the_kept_one(tmp_path: Path) -> None:
    target = seeds_run(tmp_path / "target", 0)
    before = {path: path.read_bytes() for path in target.path.rglob("*.json")}
    other, _ = planned(tmp_path / "other", seeds=(1,))
    for options, message in (
        ({"profile": "short"}, "holds small with profile none, not short; pack it into another directory"),
        ({"overrides": {"rounds": 9}}, "holds small with overrides none, not rounds=9; pack it into another directory"),
    ):
        other.save_plan(expand(spec(), seeds=(1,)).plan.model_copy(update=options))
        with pytest.raises(ConfigurationError, match=message):
            pack(other, target)
    for name, changed in (
        ("grid", {"axes": {"method": ["local", "fedproto", "feddbp"], "data": {"alpha": [0.1, 0.5]}}}),
        ("controls", {"controls": True}),
    ):
        with pytest.raises(ConfigurationError, match=r"with seed 0, which this one lacks, and small has changed since"):
            pack(seeds_run(tmp_path / name, 1, **changed), target)
    with pytest.raises(ConfigurationError, match=r"with other options: rounds is 2 in local-.*-s0-.*, not 9 as in loc"):
        pack(seeds_run(tmp_path / "rounds", 1, base={"clients": 2, "rounds": 9}), target)
    listed, expanded = planned(tmp_path / "listed", seeds=(1,), base={"clients": 2, "rounds": 9})
    listed.save_plan(expanded.plan, expanded.cells.values())  # of which nothing has been run
    with pytest.raises(ConfigurationError, match="with other options: rounds is 2"):
        pack(listed, target)
    assert {path: path.read_bytes() for path in target.path.rglob("*.json")} == before
    pack(seeds_run(tmp_path / "all", 0, 1, controls=True), target)
    plan = target.plan("small")
    assert plan is not None
    assert plan.seeds == (0, 1)
    assert len(plan.cell_ids) > 12


def test_the_same_results_are_packed_to_the_same_bytes(tmp_path: Path) -> None:
    packed = []
    for name in ("one", "other"):
        source, ids = grid(tmp_path / name, done=1)
        target = OutputDir(tmp_path / f"{name}-packed")
        pack(source, target)
        packed.append((target.cell_dir(ids[0]).path / PACKED_METRICS_NAME).read_bytes())
    assert packed[0] == packed[1]


def test_packed_cells_can_be_packed_again(tmp_path: Path) -> None:
    source, ids = grid(tmp_path / "source", done=2)
    packed, elsewhere = OutputDir(tmp_path / "packed"), OutputDir(tmp_path / "elsewhere")
    pack(source, packed)
    assert pack(packed, elsewhere) == ids[:2]
    metrics = [output.cell_dir(ids[0]).path / PACKED_METRICS_NAME for output in (packed, elsewhere)]
    assert metrics[0].read_bytes() == metrics[1].read_bytes()
    assert not (elsewhere.cell_dir(ids[0]).path / METRICS_NAME).exists()


def test_a_damaged_file_of_packed_metrics_is_named(tmp_path: Path) -> None:
    source, ids = grid(tmp_path / "source", done=1)
    target = OutputDir(tmp_path / "packed")
    pack(source, target)
    path = target.cell_dir(ids[0]).path / PACKED_METRICS_NAME
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DamagedCellError, match=PACKED_METRICS_NAME):
        target.cell_dir(ids[0]).results()


@pytest.mark.parametrize("name", [CELL_CONFIG_NAME, CELL_COST_NAME, METRICS_NAME, SUMMARY_NAME])
@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_cell_with_a_damaged_file_is_not_packed(name: str, content: str, tmp_path: Path) -> None:
    source, ids = grid(tmp_path / "source", done=1)
    (source.cell_dir(ids[0]).path / name).write_text(content)
    target = OutputDir(tmp_path / "packed")
    with pytest.raises(FedDBPError, match=rf"cells/{ids[0]}.*damaged: {name}.*; remove "):
        pack(source, target)
    assert not target.cell_dir(ids[0]).path.exists()


def test_a_cell_without_its_damaged_cost_is_packed(tmp_path: Path) -> None:
    source, ids = grid(tmp_path / "source", done=1)
    (source.cell_dir(ids[0]).path / CELL_COST_NAME).unlink()
    assert pack(source, OutputDir(tmp_path / "packed")) == ids[:1]


def test_the_command_says_how_many_cells_it_added(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid(tmp_path / "source", done=1)
    assert experiment.command(["pack", str(tmp_path / "source"), str(tmp_path / "packed")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'packed'}: 1 cell added\n"
    with pytest.raises(ConfigurationError, match="name another one for the packed cells"):
        experiment.command(["pack", str(tmp_path / "source"), str(tmp_path / "source")])
