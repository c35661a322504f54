"""Cells with files that cannot be read, as after a power failure: each is named, and the others are shown as ever."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from experiment_samples import fail, finish, planned

from feddbp_common.artifacts import CELL_CONFIG_NAME, CELL_FAILURE_NAME, METRICS_NAME, PACKED_METRICS_NAME, SUMMARY_NAME
from feddbp_common.errors import ExitCode, FedDBPError
from feddbp_lab.cli import main
from feddbp_lab.experiments.cell import Cell
from feddbp_lab.experiments.expansion import expand
from feddbp_lab.experiments.report.build import write_report
from feddbp_lab.experiments.run.cell_dir import CellDir, CellState, DamagedCellError, Failure
from feddbp_lab.experiments.run.cell_table import as_dict
from feddbp_lab.experiments.run.output_dir import OutputDir
from feddbp_lab.experiments.spec import load_experiment

NOT_JSON = ["", "{", "\0" * 60, "[]", "7"]


@pytest.fixture
def output(tmp_path: Path) -> OutputDir:
    return planned(tmp_path, axes={"method": ["fd", "local"]}, report={})[0]


@pytest.fixture
def cells(tmp_path: Path) -> list[Cell]:
    return list(planned(tmp_path, axes={"method": ["fd", "local"]}, report={})[1].cells.values())


def status_of(output: OutputDir, cell: Cell) -> dict[str, Any]:
    assert main(["experiment", "status", str(output.path)]) == 0
    found: dict[str, Any] = as_dict(output)["cells"][cell.id]
    return found


def interrupted(output: OutputDir, cell: Cell, *lines: str) -> CellDir:
    directory = output.cell_dir(cell.id)
    directory.path.mkdir(parents=True)
    directory.prepare(cell.run)
    (directory.path / "server").mkdir()
    (directory.path / "server" / METRICS_NAME).write_text("".join(f"{line}\n" for line in lines))
    return directory


def line(client: int, number: int, *, trained: bool = True) -> str:
    evaluation = {"client": client, "round": number, "accuracy": 0.25 * number, "test_samples": 4}
    return json.dumps(evaluation | {"losses": {"total": 1.0} if trained else {}})


@pytest.mark.parametrize(
    "content", [*NOT_JSON, "{}", '{"cause": 1}', '{"cause": "x", "exit_code": 1, "last_lines": 1}']
)
def test_a_failure_that_cannot_be_read_is_still_one(output: OutputDir, cells: list[Cell], content: str) -> None:
    fail(output, cells[0], Failure(cause="training diverged"))
    (output.cell_dir(cells[0].id).path / CELL_FAILURE_NAME).write_text(content)
    found = status_of(output, cells[0])
    assert found["state"] == "failed"
    assert found["failure"]["cause"] == "failed, for a reason that cannot be read in failure.json"
    write_report(output)
    assert "a reason that cannot be read" in (output.report_dir / "small.md").read_text()


@pytest.mark.parametrize("content", [*NOT_JSON, '{"rounds": "many"}', '{"method": "unheard-of"}'])
def test_a_configuration_that_cannot_be_read_is_named_in_the_status_and_not_used(
    output: OutputDir, cells: list[Cell], content: str
) -> None:
    directory = interrupted(output, cells[0])
    (directory.path / CELL_CONFIG_NAME).write_text(content)
    assert status_of(output, cells[0])["failure"]["cause"]
    write_report(output)
    with pytest.raises(FedDBPError, match="remove the cell's directory to run it again"):
        directory.prepare(cells[0].run)


@pytest.mark.parametrize(
    "damage", ['{"client": 0, "rou\0', "[]", "{}", '{"round": 1, "accuracy": {}, "test_samples": 4}']
)
def test_damaged_lines_do_not_hide_the_progress_of_an_interrupted_cell(
    output: OutputDir, cells: list[Cell], damage: str
) -> None:
    interrupted(output, cells[0], line(0, 0), line(1, 0), line(0, 1), line(1, 1), damage)
    found = status_of(output, cells[0])
    assert (found["state"], found["completed_rounds"], found["accuracy"]) == ("interrupted", 1, 0.25)


def test_the_progress_of_a_cell_counts_clients_that_have_trained(output: OutputDir, cells: list[Cell]) -> None:
    lines = line(0, 0), line(1, 0, trained=False), line(0, 1, trained=False), line(1, 1)
    interrupted(output, cells[0], *lines, line(0, 2))
    found = status_of(output, cells[0])
    assert [found[name] for name in ("completed_rounds", "accuracy", "clients", "expected_clients")] == [1, 0.25, 1, 2]


@pytest.mark.parametrize("content", [*NOT_JSON, "{}"])
def test_damaged_results_of_a_server_are_named_and_its_run_begins_again(
    output: OutputDir, cells: list[Cell], content: str
) -> None:
    directory = interrupted(output, cells[0])
    (directory.path / "server" / SUMMARY_NAME).write_text(content)
    with pytest.raises(DamagedCellError, match=f"the results in cells/{cells[0].id} are damaged: "):
        directory.collect_results(keep_state=False)
    assert directory.state is CellState.INTERRUPTED
    directory.prepare(cells[0].run)
    assert not (directory.path / "server").exists()


def test_the_state_of_a_finished_server_is_kept_whatever_else_its_summary_says(
    output: OutputDir, cells: list[Cell]
) -> None:
    directory = interrupted(output, cells[0])
    (directory.path / "server" / SUMMARY_NAME).write_text('{"outcome": "finished", "config": []}')
    directory.prepare(cells[0].run)
    assert (directory.path / "server").exists()


@pytest.mark.parametrize("change", [{"config": []}, {"config": None}, {"accuracy": 5}, {"accuracy": {"best": [1]}}])
def test_a_summary_of_other_types_is_damaged(output: OutputDir, cells: list[Cell], change: dict[str, Any]) -> None:
    for cell in cells:
        finish(output, cell, lambda *_: 0.5)
    path = output.cell_dir(cells[0].id).path / SUMMARY_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert "are damaged: " in status_of(output, cells[0])["failure"]["cause"]
    assert status_of(output, cells[1])["accuracy"] == 0.5
    write_report(output)
    assert cells[1].id in (output.report_dir / "index.html").read_text()
    if "config" in change:  # the tables need nothing else of it
        assert f"Failed: `{cells[0].id}`: the results in " in (output.report_dir / "small.md").read_text()


def test_a_file_of_packed_metrics_that_was_overwritten_is_damaged(output: OutputDir, cells: list[Cell]) -> None:
    finish(output, cells[0], lambda *_: 0.5)
    directory = output.cell_dir(cells[0].id)
    (directory.path / PACKED_METRICS_NAME).write_bytes(b"\0" * 60)
    with pytest.raises(DamagedCellError, match=PACKED_METRICS_NAME):
        directory.results()


@pytest.mark.parametrize("content", [b"", b"{", b"\0" * 60, b"\xff\xfe"])
def test_a_damaged_plan_is_one_line(output: OutputDir, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    path = output.path / "experiments" / "small.json"
    path.write_bytes(content)
    assert main(["experiment", "status", str(output.path)]) == 2
    problem = capsys.readouterr().err
    assert problem.startswith(f"feddbp: error: {path}: not a plan of this version")
    assert problem.count("\n") == 1


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


@pytest.mark.parametrize(("name", "damage"), [(METRICS_NAME, cut), (METRICS_NAME, Path.unlink), (SUMMARY_NAME, cut)])
def test_a_damaged_cell_is_named_by_the_report_and_by_the_run(
    name: str, damage: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, output = tmp_path / "small.toml", OutputDir(tmp_path / "out")
    file.write_text("title = 'Small'\nbase = {clients = 2, rounds = 2}\naxes = {method = ['fd', 'local']}")
    broken, whole = expand(load_experiment(str(file)), seeds=(0,)).cells.values()
    for cell in (broken, whole):
        finish(output, cell, lambda *_: 0.5)
    run = ["experiment", "run", str(file), "--out", str(output.path), "--seeds", "0"]
    assert main(run) == ExitCode.OK
    assert main(["experiment", "report", str(output.path)]) == ExitCode.OK
    assert capsys.readouterr().err == ""
    damage(output.cell_dir(broken.id).path / name)
    for command in (run, ["experiment", "report", str(output.path)]):
        assert main(command) == ExitCode.RUN_FAILED
        captured = capsys.readouterr()
        assert "report/index.html" in captured.out
        (line,) = captured.err.splitlines()
        assert line.startswith("feddbp experiment: damaged cell: ")
        assert f"cells/{broken.id}" in line
        assert name in line
        assert line.endswith("; remove the cell's directory to run it again")
    assert main([*run, "--only", "local"]) == ExitCode.OK  # the other cell is none of this run


@pytest.mark.parametrize(("name", "damage"), [(SUMMARY_NAME, cut), (METRICS_NAME, Path.unlink)])
def test_a_damaged_cell_counts_as_damaged_and_not_as_done(
    output: OutputDir,
    cells: list[Cell],
    name: str,
    damage: Callable[[Path], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    for cell in cells:
        finish(output, cell, lambda *_: 0.5)
    assert status_of(output, cells[0])["state"] == "done"
    assert "damaged" not in capsys.readouterr().out
    damage(output.cell_dir(cells[0].id).path / name)
    assert status_of(output, cells[0])["state"] == "damaged"
    heading, _, counts, *lines = capsys.readouterr().out.splitlines()
    assert heading.split()[-2:] == ["done", "damaged"]
    assert counts.split() == ["small", "2", "1", "1"]
    assert lines[0].split() == ["damaged", cells[0].id]
    assert name in lines[1]
    assert not any(line.startswith(("done", "failed")) for line in lines[:2])
