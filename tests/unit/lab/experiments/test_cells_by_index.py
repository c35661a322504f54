"""Cells by their index, and results at an fsspec address: real servers, and clients that do not train."""

from __future__ import annotations

import json
import uuid
from importlib.metadata import version
from pathlib import Path

import pytest
from lab_fake_demo import python_path

from feddbp_common.cpu_cores import processor
from feddbp_lab.cli import main
from feddbp_lab.experiments.run.store import open_store
from feddbp_lab.processes import local_federation

GRID = """
title = "Two lengths"
[base]
clients = 2
method = "fedproto"
[axes]
rounds = [1, 2]
"""


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(local_federation, "CLIENT_MODULE", "lab_fake_client")
    monkeypatch.setenv("PYTHONPATH", python_path())
    path = tmp_path / "grid.toml"
    path.write_text(GRID)
    return str(path)


def test_cells_of_a_plan_are_run_by_their_index(grid: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert main(["experiment", "plan", grid, "--out", out]) == 0
    assert capsys.readouterr().out == f"grid: 2 cells; feddbp experiment cell {out} --index 0 to 1\n"
    assert main(["experiment", "cell", out, "--index", "1", "--work-dir", str(tmp_path / "node")]) == 0
    assert "done    fedproto-digits-a0.1-mini-8-e10-r2-s0-" in capsys.readouterr().out
    (cost,) = Path(out).glob("cells/*-r2-*/cost.json")
    recorded = json.loads(cost.read_text())
    assert recorded["processor"] == processor()
    software = recorded["software"]
    assert software["feddbp"] == version("feddbp")
    assert {"python", "numpy", "torch"} <= software.keys()
    assert main(["experiment", "cell", out, "--index", "1"]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert main(["experiment", "status", out, "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [cell["state"] for cell in cells.values()] == ["waiting", "done"]
    for options, message in (
        (["--index", "2"], "--index 2: grid has 2 cells, 0 to 1"),
        (["--index", "0", "--experiment", "other"], f"{out} holds no experiment 'other'; it holds grid"),
    ):
        assert main(["experiment", "cell", out, *options]) == 2
        assert capsys.readouterr().err == f"feddbp: error: {message}\n"


def test_a_work_directory_that_cannot_be_used_fails_the_command_and_no_cell(
    grid: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, work = str(tmp_path / "out"), tmp_path / "work"
    work.mkdir()
    work.chmod(0o777)
    file = tmp_path / "file"
    file.touch()
    assert main(["experiment", "plan", grid, "--out", out]) == 0
    for directory, message in (
        (work, f"the work directory {work} can be written to by other users; take their write permission away"),
        (file, f"the work directory {file} is not a directory"),
        (file / "work", f"the work directory {file}/work cannot be created: Not a directory"),
    ):
        for command in (["run", grid, "--out", out], ["cell", out, "--index", "0"]):
            capsys.readouterr()
            assert main(["experiment", *command, "--work-dir", str(directory)]) == 2
            said = capsys.readouterr()
            assert said.out == ""
            assert said.err.startswith(f"feddbp: error: {message}")
            assert said.err.endswith(", or give another --work-dir\n")
            assert said.err.count("\n") == 1
    assert not (Path(out) / "cells").exists()


def test_results_are_kept_at_an_address(grid: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = f"memory://{uuid.uuid4().hex}"
    options = ("--out", out, "--jobs", "1", "--work-dir", str(tmp_path / "node"))
    assert main(["experiment", "run", grid, *options]) == 0
    assert capsys.readouterr().out.endswith(f"report: {out}/report\n")
    store = open_store(out)
    assert {"index.html", "grid.md"} <= set(store.names("report"))
    for cell in store.names("cells"):
        assert set(store.names(f"cells/{cell}")) == {
            *("config.json", "cost.json", "metrics.jsonl", "summary.json", "logs")
        }
    assert main(["experiment", "status", out, "--json"]) == 0
    assert [cell["state"] for cell in json.loads(capsys.readouterr().out)["cells"].values()] == ["done"] * 2
    assert main(["experiment", "run", grid, *options]) == 0
    assert "Two lengths: 2 cells, 2 of them done" in capsys.readouterr().out
    assert main(["experiment", "report", out]) == 0
    assert capsys.readouterr().out == f"{out}/report\n"
