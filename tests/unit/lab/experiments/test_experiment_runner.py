"""`feddbp experiment run` with real processes: real servers, and clients that do not train."""

from __future__ import annotations

import asyncio
import errno
import io
import itertools
import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from experiment_samples import finish, planned, spec
from lab_fake_demo import python_path
from lab_samples import printed
from processes import Command, Federation, processes_naming, wait_until
from rich.console import Console

from feddbp_common.errors import ConfigurationError
from feddbp_common.file_lock import FileLock, LockHeldError
from feddbp_lab.cli import main
from feddbp_lab.experiments.cell import Cell
from feddbp_lab.experiments.config import ExecutionConfig
from feddbp_lab.experiments.expansion import expand
from feddbp_lab.experiments.resources import Allocation, Resources
from feddbp_lab.experiments.run import cell_dir
from feddbp_lab.experiments.run import runner as runner_module
from feddbp_lab.experiments.run.attempt import (
    CellInUseError,
    CellJob,
    CellOutcome,
    CellProgressReport,
    Progress,
    Verdict,
    wait_until_released,
)
from feddbp_lab.experiments.run.cell_dir import CellState, Failure
from feddbp_lab.experiments.run.display import LiveCellDisplay, Workload
from feddbp_lab.experiments.run.executor import LocalExecutor
from feddbp_lab.experiments.run.lease import Holder, Lease, LeaseWatch, take_lease
from feddbp_lab.experiments.run.output_dir import OutputDir
from feddbp_lab.experiments.run.planning import cells_left, clean_up_done
from feddbp_lab.experiments.run.runner import Runner
from feddbp_lab.experiments.run.store import DirectoryStore
from feddbp_lab.experiments.spec import load_experiment

GRID = """
title = "Two lengths"
[base]
clients = 2
method = "fedproto"
[axes]
rounds = [{rounds}]
"""
Run = Callable[..., Command]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def run(tmp_path: Path, out: Path, running_federation: Federation) -> Run:
    """Starts `feddbp experiment run` on a grid of runs of the given lengths."""

    def start(rounds: str, *options: str, **environment: str) -> Command:
        path = tmp_path / "grid.toml"
        path.write_text(GRID.format(rounds=rounds))
        return running_federation.start(
            "lab_fake_demo",
            "experiment",
            "run",
            path,
            "--out",
            out,
            *options,
            name="runner",
            env={"PYTHONPATH": python_path(), **environment},
        )

    return start


def status(out: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["experiment", "status", str(out), "--json"]) == 0
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def states(content: dict[str, Any]) -> list[str]:
    return [cell["state"] for cell in content["cells"].values()]


def training(out: Path) -> bool:
    return any(path.stat().st_size for path in out.glob("cells/*/server/metrics.jsonl"))


def test_cells_are_run_once_and_reported(run: Run, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = run("1, 2", "--jobs", "2")
    first.expect_exit(0)
    assert first.log.startswith("Two lengths: 2 cells; up to 2 at a time")
    assert first.log.count("\ndone    fedproto-digits-") == 2
    assert (out / "report" / "index.html").exists()
    content = status(out, capsys)
    assert states(content) == ["done", "done"]
    for name, cell in content["cells"].items():
        summary = json.loads((out / "cells" / name / "summary.json").read_text())
        assert cell["accuracy"] == summary["accuracy"]["best"]["weighted"]
    for cell in (out / "cells").iterdir():
        assert {path.name for path in cell.iterdir()} == {
            *("config.json", "cost.json", "metrics.jsonl", "summary.json", "logs")
        }
        assert json.loads((cell / "cost.json").read_text())["core_seconds"] > 0
    again = run("1, 2, 3", "--keep-state")
    again.expect_exit(0)
    assert "3 cells, 2 of them done" in again.log
    assert again.log.count("begin ") == 1
    assert len(list(out.glob("cells/*/server"))) == 1
    assert processes_naming(out) == []


def test_a_failing_cell_does_not_stop_the_others(run: Run, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failing = run("1, 4, 2", "--jobs", "1", FAKE_EXIT="1,2,7")
    failing.expect_exit(5)
    assert "1 cell failed; feddbp experiment status" in failing.log
    content = status(out, capsys)
    assert states(content) == ["done", "failed", "done"]
    (failure,) = (cell["failure"] for cell in content["cells"].values() if "failure" in cell)
    assert failure["exit_code"] == 7
    assert "client 1 exits: FAKE_EXIT" in failure["last_lines"]
    assert main(["experiment", "status", str(out)]) == 0
    assert "exits: FAKE_EXIT" in capsys.readouterr().out
    assert "1 of 3 cells failed" in (out / "report" / "grid.md").read_text()


def test_a_second_runner_takes_over_from_an_interrupted_one_which_stops_every_process(
    run: Run, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = run("500", FAKE_EPOCH_SECONDS="0.05")
    wait_until(lambda: training(out), "training")
    content = status(out, capsys)
    assert states(content) == ["running"]
    ((name, cell),) = content["cells"].items()
    assert 0 <= cell["completed_rounds"] < cell["rounds"] == 500
    assert main(["experiment", "status", str(out)]) == 0
    assert "of 500 rounds" in capsys.readouterr().out
    second = run("500", FAKE_EPOCH_SECONDS="0.05")
    wait_until(lambda: "other   fedproto-" in second.log, "the second runner to find the cell taken")
    running.interrupt()
    running.expect_exit(130)
    assert "feddbp experiment: stopping every process…" in running.log
    assert "the same command resumes it" in running.log
    wait_until(lambda: ", attempt 2" in second.log, "the second runner to take the cell")
    second.interrupt()
    second.expect_exit(130)
    assert processes_naming(out) == []
    assert states(status(out, capsys)) == ["interrupted"]
    assert status(out, capsys)["cells"][name]["attempts"] == 2


def test_runners_share_a_directory_and_do_no_cell_twice(
    run: Run, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = [run("1, 2, 3, 4", "--jobs", "1") for _ in range(2)]
    for runner in both:
        runner.expect_exit(0)
    begun = [line for runner in both for line in runner.log.splitlines() if line.startswith("begin ")]
    assert len(begun) == len(set(begun)) == 4
    content = status(out, capsys)
    assert states(content) == ["done"] * 4
    assert [cell["attempts"] for cell in content["cells"].values()] == [1] * 4
    assert not list(out.glob("cells/*/lease-*"))
    assert processes_naming(out) == []


def test_a_directory_with_a_runner_of_an_earlier_version_is_refused(run: Run, out: Path) -> None:
    out.mkdir()
    with FileLock(out / ".runner"):
        (out / ".runner").write_text(f"{os.getpid()}\n")  # as that version did
        second = run("1")
        second.expect_exit(2)
    assert second.log == f"feddbp: error: a runner of an earlier version (process {os.getpid()}) uses {out}\n"
    with FileLock(out / ".runner", shared=True), pytest.raises(LockHeldError):
        FileLock(out / ".runner")  # as an earlier version would


def test_watching_an_experiment_ends_with_its_runner(run: Run, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running = run("6", FAKE_EPOCH_SECONDS="0.05")
    wait_until(lambda: training(out), "training")
    capsys.readouterr()
    assert main(["experiment", "status", str(out), "--watch"]) == 0
    running.expect_exit(0)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[-1] == "done"
    assert lines[-1].split() == ["grid", "1", "1"]


def test_no_process_outlives_a_killed_runner(run: Run, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running = run("500", FAKE_EPOCH_SECONDS="0.05")
    wait_until(lambda: training(out), "training")
    assert len(processes_naming(out)) >= 5  # the runner, the server, a client process, and a guard for each
    running.kill()
    wait_until(lambda: not processes_naming(out), "the end of all processes")
    assert states(status(out, capsys)) == ["interrupted"]


class FailureRecorder:
    """A display that records which cells are done, and the causes of failures."""

    def __init__(self) -> None:
        self.causes: list[str] = []
        self.finished: list[str] = []

    def begin(self, cell: Cell) -> None: ...

    def show(self, cell: Cell, progress: CellProgressReport) -> None: ...

    def done(self, cell: Cell, summary: dict[str, Any]) -> None:
        self.finished.append(cell.id)

    def end(self, cell: Cell) -> None: ...

    def failed(self, cell: Cell, failure: Failure) -> None:
        self.causes.append(failure.cause)


def runner_of(output_dir: OutputDir, cells: list[Cell], display: FailureRecorder) -> Runner:
    def job(cell: Cell) -> CellJob:
        return CellJob(cell=cell, out=str(output_dir.path), data_dir=output_dir.path, in_place=True)

    executor = LocalExecutor(jobs=2, cores=2)
    return Runner(output=output_dir, cells=cells, executor=executor, display=display, job=job)


async def test_a_cell_directory_with_another_run_is_not_changed(tmp_path: Path) -> None:
    output_dir, expanded = planned(tmp_path, axes={"method": ["fd"]}, report={})
    (cell,) = expanded.cells.values()
    config = json.loads(cell.run.canonical_json())
    config["training"]["learning_rate"] = 0.5
    directory = output_dir.cell_dir(cell.id)
    directory.path.mkdir(parents=True)
    (directory.path / "config.json").write_text(json.dumps(config))
    recorder = FailureRecorder()
    runner = runner_of(output_dir, [cell], recorder)
    await runner.run()
    assert runner.failed == [cell]
    (cause,) = recorder.causes
    assert "training.learning_rate is 0.5 there and 0.01 here" in cause
    assert directory.state is CellState.FAILED
    assert json.loads((directory.path / "config.json").read_text()) == config


class NoWork(LocalExecutor):
    """Cells whose runs succeed at once."""

    async def run(self, job: CellJob, allocation: Allocation, progress: Progress) -> CellOutcome:
        return CellOutcome(verdict=Verdict.DONE, summary={})


def two_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Runner, FailureRecorder]:
    monkeypatch.setattr(runner_module, "_POLL_SECONDS", 0.0)
    output_dir, expanded = planned(tmp_path, axes={"method": ["fd", "local"]}, report={})
    recorder = FailureRecorder()
    runner = runner_of(output_dir, [*expanded.cells.values()], recorder)
    runner.executor = NoWork(jobs=2, cores=2)
    return runner, recorder


def make_unreadable(monkeypatch: pytest.MonkeyPatch, cell: Cell, times: float) -> None:
    """Makes a cell's folder unreadable for so many times."""
    names, failures = DirectoryStore.names, itertools.count()

    def unreliable_names(store: DirectoryStore, key: str) -> list[str]:
        if cell.id in key and next(failures) < times:
            raise OSError(errno.EIO, "stale file handle")
        return names(store, key)

    monkeypatch.setattr(DirectoryStore, "names", unreliable_names)


async def test_a_store_that_cannot_be_read_for_an_instant_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runner, recorder = two_cells(tmp_path, monkeypatch)
    make_unreadable(monkeypatch, runner.cells[0], times=3)
    await runner.run()
    assert recorder.finished == [runner.cells[1].id, runner.cells[0].id]
    assert runner.failed == []
    (warning,) = caplog.messages
    assert "stale file handle; trying again" in warning


async def test_a_store_that_stays_unreadable_fails_the_cell_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, recorder = two_cells(tmp_path, monkeypatch)
    make_unreadable(monkeypatch, runner.cells[0], times=math.inf)
    await runner.run()
    assert recorder.finished == [runner.cells[1].id]
    assert runner.failed == [runner.cells[0]]
    assert recorder.causes == [f"{tmp_path} could not be read 300 times in a row"]


async def test_no_bar_is_left_of_a_cell_that_another_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner, _ = two_cells(tmp_path, monkeypatch)
    elsewhere = runner.cells[0]
    holder = Holder(id="other", node="gpu-3", boot="another boot", pid=1)
    lease = take_lease(runner.output.store, elsewhere.id, holder, 60.0, after=None)
    release = lease.release if lease else pytest.fail
    left: list[str] = []

    class Bars(LiveCellDisplay):
        def show(self, cell: Cell, progress: CellProgressReport) -> None:
            super().show(cell, progress)
            release()

        def done(self, cell: Cell, summary: dict[str, Any]) -> None:
            self.workload.finish(cell)

        def stop(self) -> None:
            left.extend(bar.description for bar in self.bars.tasks)
            super().stop()

    console = Console(file=io.StringIO(), force_terminal=True)
    with Bars(workload=Workload(runner.cells), console=console) as runner.display:
        await runner.run()
    assert runner.failed == []
    assert left == ["all"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"accuracy": 1}', '{"completed_rounds": "2", "config": []}'])
async def test_damaged_results_of_another_runner_fail_the_cell_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    runner, recorder = two_cells(tmp_path, monkeypatch)
    damaged = runner.cells[0]
    finish(runner.output, damaged, lambda *_: 0.5)
    (runner.output.cell_dir(damaged.id).path / "summary.json").write_text(content)
    await runner.run()
    assert runner.failed == [damaged]
    assert recorder.finished == [runner.cells[1].id]
    (cause,) = recorder.causes
    assert cause.startswith(f"the results in cells/{damaged.id} are damaged: ")
    assert cause.endswith("; remove the cell's directory to run it again")


async def test_a_failure_of_another_runner_that_cannot_be_read_is_still_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, recorder = two_cells(tmp_path, monkeypatch)
    failing = runner.cells[0]
    directory = runner.output.cell_dir(failing.id).path

    class TakenMeanwhile(NoWork):
        async def run(self, job: CellJob, allocation: Allocation, progress: Progress) -> CellOutcome:
            if job.cell is not failing:
                return await super().run(job, allocation, progress)
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "failure.json").write_text("{")
            return CellOutcome(verdict=Verdict.BUSY)

    runner.executor = TakenMeanwhile(jobs=2, cores=2)
    await runner.run()
    assert runner.failed == [failing]
    assert recorder.causes == ["failed, for a reason that cannot be read in failure.json"]


async def test_processes_of_a_killed_runner_are_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "daemon.lock"
    lock = FileLock(path)
    waiting = asyncio.create_task(wait_until_released([path], timedelta(seconds=60)))
    with pytest.raises(CellInUseError, match="a process of an earlier runner still uses"):
        await wait_until_released([path], timedelta(0))
    assert not waiting.done()
    lock.release()
    await asyncio.wait_for(waiting, timeout=60)


def test_seeds_of_several_calls_are_reported_together_and_other_profiles_are_refused(
    tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(GRID.format(rounds="1"))
    output_dir = OutputDir(out)
    for seed in ("0", "4"):
        for cell in expand(load_experiment(str(path)), seeds=(int(seed),)).cells.values():
            finish(output_dir, cell, lambda *_: 0.5)
        assert main(["experiment", "run", str(path), "--out", str(out), "--seeds", seed]) == 0
        assert "1 cell, 1 of them done" in capsys.readouterr().out
    plan = output_dir.plan("grid")
    assert plan is not None
    assert plan.seeds == (0, 4)
    assert "over seeds 0, 4" in (out / "report" / "grid.md").read_text()
    for options, message in (
        (["--override", "clients=3"], "holds grid with overrides none, not clients=3"),
        (["--profile", "quick"], "holds grid with profile none, not quick"),
    ):
        assert main(["experiment", "run", str(path), "--out", str(out), *options]) == 2
        assert f"{message}; give the same, or another --out" in capsys.readouterr().err


def test_an_experiment_of_version_1_with_the_quick_profile_goes_on_as_short(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output_dir = OutputDir(out)
    plan = expand(load_experiment("fig2"), seeds=(0,), profile="short").plan
    old = json.loads(plan.model_dump_json())
    del old["version"]
    old["profile"], old["parts"][0]["report"]["compare"] = "quick", "fedproto"
    for point in old["parts"][0]["points"]:
        del point["without_exchange"]
    (out / "experiments").mkdir(parents=True)
    (out / "experiments" / "fig2.json").write_text(json.dumps(old))
    for cell in expand(load_experiment("fig2"), seeds=(0,), profile="short").cells.values():
        finish(output_dir, cell, lambda *_: 0.5)
    assert main(["experiment", "report", str(out)]) == 0
    assert "Profile short, 20 clients" in (out / "report" / "fig2.md").read_text()
    capsys.readouterr()
    assert main(["experiment", "run", "fig2", "--out", str(out), "--seeds", "0", "--profile", "short"]) == 0
    assert "12 cells, 12 of them done" in capsys.readouterr().out
    assert main(["experiment", "run", "fig2", "--out", str(out), "--seeds", "0"]) == 2
    assert "holds fig2 with profile short, not quick" in capsys.readouterr().err


def test_the_status_shows_the_accuracy_in_the_chosen_round(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output_dir, expanded = planned(out, base={"training": {"validation": 0.1}}, axes={"method": ["fd"]}, report={})
    (cell,) = expanded.cells.values()
    finish(output_dir, cell, lambda *_: 0.5)
    path = output_dir.cell_dir(cell.id).path / "summary.json"
    points = {
        name: {"weighted": share, "clients": 2} for name, share in (("best", 0.9), ("chosen", 0.8), ("last", 0.7))
    }
    for accuracy, expected in ((points, 0.8), (dict.fromkeys(points), None)):
        path.write_text(json.dumps({**json.loads(path.read_text()), "accuracy": accuracy}))
        over = {"clients": 2 if expected else 0, "expected_clients": 2}
        shown = {"state": "done", "accuracy": expected, "basis": "validation", **over}
        assert status(out, capsys)["cells"][cell.id] == shown


def test_the_status_of_a_run_with_newcomers_shows_their_accuracy(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = {"clients": 2, "rounds": 3, "newcomers": 1, "newcomer_rounds": 2}
    output_dir, expanded = planned(out, base=base, axes={"method": ["fd"]}, report={})
    (cell,) = expanded.cells.values()
    finish(output_dir, cell, lambda *_: 0.5)
    path = output_dir.cell_dir(cell.id).path / "summary.json"
    summary = json.loads(path.read_text())
    summary["per_client"][0]["accuracy"] = 0.1
    path.write_text(json.dumps(summary))
    shown = {"state": "done", "accuracy": 0.5, "basis": "last", "clients": 1, "expected_clients": 1}
    assert status(out, capsys)["cells"][cell.id] == shown


def test_cells_that_are_no_longer_part_of_a_grid_are_counted(
    tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "grid.toml"
    for rounds in ("1", "2"):
        path.write_text(GRID.format(rounds=rounds))
        for cell in expand(load_experiment(str(path)), seeds=(0,)).cells.values():
            finish(OutputDir(out), cell, lambda *_: 0.5)
        assert main(["experiment", "run", str(path), "--out", str(out), "--seeds", "0"]) == 0
        printed_text = capsys.readouterr().out
        assert ("grid has changed since its last run here: 1 cell kept but no longer reported" in printed_text) is (
            rounds == "2"
        )


def test_a_seed_that_was_never_started_is_dropped_from_the_plan(tmp_path: Path, out: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(GRID.format(rounds="1"))
    grid, output_dir = load_experiment(str(path)), OutputDir(out)
    output_dir.save_plan(expand(grid, seeds=(0, 33)).plan)
    for cell in expand(grid, seeds=(0,)).cells.values():
        finish(output_dir, cell, lambda *_: 0.5)
    assert main(["experiment", "run", str(path), "--out", str(out), "--seeds", "0"]) == 0
    plan = output_dir.plan("grid")
    assert plan is not None
    assert plan.seeds == (0,)


async def test_a_cell_directory_that_cannot_be_created_does_not_stop_the_others(tmp_path: Path) -> None:
    output_dir, expanded = planned(tmp_path, axes={"method": ["fd", "fpl"]}, report={})
    (tmp_path / "cells").write_text("not a directory")
    recorder = FailureRecorder()
    runner = runner_of(output_dir, [*expanded.cells.values()], recorder)
    await runner.run()
    assert len(runner.failed) == len(recorder.causes) == 2


def test_the_state_of_a_cell_with_an_empty_summary_is_removed(tmp_path: Path) -> None:
    output_dir, expanded = planned(tmp_path)
    cell = next(iter(expanded.cells.values()))
    directory = output_dir.cell_dir(cell.id)
    (directory.path / "server").mkdir(parents=True)
    (directory.path / "server" / "summary.json").write_text("")
    directory.prepare(cell.run)
    assert not (directory.path / "server").exists()


def test_state_left_by_a_killed_runner_is_removed_and_kept_state_is_not(tmp_path: Path) -> None:
    output_dir, expanded = planned(tmp_path)
    directory = output_dir.cell_dir(next(iter(expanded.cells)))
    with directory.lock():
        assert directory.state is CellState.WAITING
    (directory.path / "server").mkdir()
    (directory.path / "summary.json").write_text("{}")
    directory.clean_up(keep_state=False)
    assert [path.name for path in directory.path.iterdir()] == ["summary.json"]
    (directory.path / "server").mkdir()
    directory.clean_up(keep_state=False)
    assert (directory.path / "server").exists()


DoneCell = Callable[[Holder], tuple[Cell, Lease]]


@pytest.fixture
def done_cell(tmp_path: Path) -> DoneCell:
    """A cell that is done, with the state and the lease that a runner leaves that is killed before it removes them."""

    def make(holder: Holder) -> tuple[Cell, Lease]:
        output_dir, expanded = planned(tmp_path, axes={"method": ["fd"]}, report={})
        (cell,) = expanded.cells.values()
        finish(output_dir, cell, lambda *_: 0.5)
        directory = output_dir.cell_dir(cell.id)
        (directory.path / "certs").mkdir()
        directory.lock().release()
        lease = take_lease(output_dir.store, cell.id, holder, 60.0, after=None)
        assert lease is not None
        lease.record = replace(lease.record, renewed_at=0.0)
        lease._write()
        return cell, lease

    return make


ELSEWHERE = replace(Holder.here(), node="another machine", boot="of another machine")


def test_state_of_a_done_cell_is_kept_while_another_machine_has_its_lease_whatever_the_clocks(
    tmp_path: Path, done_cell: DoneCell
) -> None:
    cell, lease = done_cell(ELSEWHERE)
    output_dir = OutputDir(tmp_path)
    for is_released in (False, True):
        assert cells_left([cell], output_dir, LeaseWatch(), keep_state=False) == []
        assert (output_dir.cell_dir(cell.id).path / "certs").exists() is not is_released
        lease.release()


def test_state_of_a_done_cell_is_removed_after_this_machine_has_been_started_again(
    tmp_path: Path, done_cell: DoneCell
) -> None:
    cell, _ = done_cell(replace(Holder.here(), boot="before the restart"))
    assert cells_left([cell], OutputDir(tmp_path), LeaseWatch(), keep_state=False) == []
    assert not (OutputDir(tmp_path).cell_dir(cell.id).path / "certs").exists()


def test_state_of_a_done_cell_is_removed_once_another_machine_has_not_renewed_its_lease(
    tmp_path: Path, done_cell: DoneCell
) -> None:
    cell, lease = done_cell(ELSEWHERE)
    certs = OutputDir(tmp_path).cell_dir(cell.id).path / "certs"
    clock = [0.0]
    watch = LeaseWatch(clock=lambda: clock[0])
    for clock[0], is_renewed, is_kept in ((0, False, True), (50, True, True), (105, False, True), (115, False, False)):
        if is_renewed:
            lease.renew(1.0)
        clean_up_done([cell], OutputDir(tmp_path), watch, keep_state=False)
        assert certs.exists() is is_kept


def test_the_cost_of_a_cell_is_that_of_all_attempts_at_its_run(tmp_path: Path) -> None:
    output_dir, expanded = planned(tmp_path)
    cell = next(iter(expanded.cells.values()))
    directory = output_dir.cell_dir(cell.id)
    directory.path.mkdir(parents=True)
    assert directory.core_seconds() is None
    for _ in range(2):  # the second attempt resumes the first
        directory.prepare(cell.run)
        directory.add_cost(1.25)
    assert directory.core_seconds() == 2.5
    (directory.path / "server").mkdir()
    (directory.path / "server" / "summary.json").write_text(json.dumps({"outcome": "failed"}))
    directory.prepare(cell.run)  # begins again
    assert directory.core_seconds() is None


def test_the_kinds_of_cpu_of_all_attempts_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_dir, "installed_versions", lambda: {"torch": "2"})
    directory = cell_dir.CellDir(tmp_path)
    recorded = []
    for attempt, kind in enumerate(["old", "old", "new", "third", "old"], 1):
        monkeypatch.setattr(cell_dir, "processor", lambda kind=kind: kind)
        directory.record_attempt(attempt, "node")
        cost = json.loads((tmp_path / "cost.json").read_text())
        recorded.append((cost["processor"], [entry["processor"] for entry in cost.get("earlier", ())]))
    assert recorded == [
        ("old", []),
        ("old", []),
        ("new", ["old"]),
        ("third", ["old", "new"]),
        ("old", ["new", "third"]),
    ]
    assert cost["earlier"][0] == {"processor": "new", "software": {"torch": "2"}}
    assert directory.attempts() == 5


@pytest.mark.parametrize(
    ("content", "earlier"), [("{", None), ('{"core_seconds": 7}', [None]), ('{"earlier": 1}', [None])]
)
def test_the_kind_of_cpu_of_an_attempt_of_an_earlier_version_is_unknown(
    tmp_path: Path, content: str, earlier: list[None] | None
) -> None:
    (tmp_path / "cost.json").write_text(content)
    cell_dir.CellDir(tmp_path).record_attempt(2, "node")
    kinds = json.loads((tmp_path / "cost.json").read_text()).get("earlier")
    assert (kinds and [entry["processor"] for entry in kinds]) == earlier


def test_a_run_that_failed_is_started_again_from_the_beginning(tmp_path: Path) -> None:
    output_dir, expanded = planned(tmp_path)
    cell = next(iter(expanded.cells.values()))
    directory = output_dir.cell_dir(cell.id)
    for outcome, kept in (("finished", True), ("failed", False)):
        (directory.path / "server").mkdir(parents=True, exist_ok=True)
        (directory.path / "server" / "summary.json").write_text(json.dumps({"outcome": outcome}))
        directory.prepare(cell.run)
        assert (directory.path / "server").exists() is kept


@pytest.mark.parametrize(
    ("machine", "cells", "gpus", "processes"),
    [
        ({"jobs": 4, "cores": 4}, 9, [()] * 4, 1),
        ({"jobs": 4, "cores": 4}, 2, [()] * 2, 2),
        ({"jobs": 4, "cores": 4}, 1, [()], 4),
        ({"jobs": 1, "cores": 4}, 9, [()], 4),
        ({"jobs": 8, "cores": 4}, 9, [()] * 8, 1),
        ({"jobs": 2, "cores": 8, "gpus": (0, 3)}, 9, [(0,), (3,)], 1),
        ({"jobs": 3, "cores": 8, "gpus": (0, 3)}, 9, [(0,), (3,), (0,)], 1),
    ],
)
def test_cells_are_spread_over_cores_and_gpus(
    machine: dict[str, Any], cells: int, gpus: list[tuple[int, ...]], processes: int
) -> None:
    cell = next(iter(expand(spec(), seeds=(0,)).cells.values()))
    executor = LocalExecutor(**machine)
    given = [executor.allocate(cell, cells_left=cells) for _ in gpus]
    assert [allocation and allocation.gpus for allocation in given] == gpus
    assert [allocation and allocation.processes for allocation in given] == [processes] * len(gpus)
    assert all(allocation and allocation.gpu_share == 1 for allocation in given)
    assert executor.allocate(cell, cells_left=cells) is None


def cell_with(**resources: Any) -> Cell:
    return Cell(next(iter(expand(spec(), seeds=(0,)).cells.values())).run, Resources.model_validate(resources))


def test_cells_are_packed_within_cores_gpus_and_memory() -> None:
    executor = LocalExecutor(jobs=8, cores=8, gpus=(0, 1), memory=16_000_000_000)
    half = cell_with(num_cpus=1, num_gpus=0.5, memory="3GB")
    first, second, third = (executor.allocate(half, cells_left=9) for _ in range(3))
    assert first is not None
    assert (first.gpus, first.gpu_share, first.processes, first.threads) == ((0,), 0.5, 1, 1)
    assert [given and given.gpus for given in (second, third)] == [(1,), (0,)]
    whole = cell_with(num_cpus=4, num_gpus=1)
    assert executor.allocate(whole, cells_left=9) is None  # of each GPU a half is taken
    assert executor.allocate(cell_with(num_cpus=1, num_gpus=0, memory="8GB"), cells_left=9) is None
    executor.release(first)
    assert third is not None
    executor.release(third)
    given = executor.allocate(whole, cells_left=9)
    assert given is not None
    assert (given.gpus, given.gpu_share, given.processes, given.threads) == ((0,), 1.0, 1, 4)
    assert executor.allocate(cell_with(num_cpus=4, num_gpus=0), cells_left=9) is None
    assert executor.allocate(cell_with(num_cpus=3, num_gpus=0), cells_left=9) is not None


@pytest.mark.parametrize(
    ("resources", "asked"),
    [
        ({"num_cpus": 9}, "9 CPUs, 0.5 GPUs"),
        ({"num_gpus": 2}, "8 CPUs, 2 GPUs"),
        ({"memory": "32GB"}, "8 CPUs, 0.5 GPUs and 32.0 GB of memory"),
    ],
)
def test_a_cell_that_asks_for_more_than_there_is_is_refused_with_the_numbers(
    resources: dict[str, Any], asked: str
) -> None:
    executor = LocalExecutor(jobs=2, cores=8, gpus=(0,), memory=16_000_000_000)
    with pytest.raises(ConfigurationError) as refused:
        executor.check([cell_with(**{"num_cpus": 8, **resources})])
    assert str(refused.value) == (f"a cell asks for {asked}; this machine has 8 CPUs, 1 GPU and 16.0 GB of memory")


def test_a_part_of_an_experiment_has_resources_of_its_own_and_the_command_line_decides() -> None:
    grid = spec(
        resources={"num_cpus": 2, "memory": "1GB"},
        axes={"method": ["fd"]},
        report={},
        parts=[{"base": {"rounds": 1}}, {"base": {"rounds": 2}, "resources": {"num_gpus": 0.5}}],
    )
    first, second = (cell.resources for cell in expand(grid, seeds=(0,)).cells.values())
    assert first == Resources.model_validate({"num_cpus": 2, "memory": "1GB"})
    assert second == Resources.model_validate({"num_cpus": 2, "num_gpus": 0.5, "memory": "1GB"})
    given = Resources.model_validate({"num_gpus": 1}).or_else(second)
    assert (given.num_cpus, given.num_gpus) == (2, 1)
    with pytest.raises(ConfigurationError, match="neither a fraction of one GPU nor a whole number"):
        Resources(num_gpus=1.5)


def test_by_default_each_gpu_runs_one_cell_at_a_time() -> None:
    assert ExecutionConfig(gpus=(0, 1, 2)).local_jobs == 3
    assert ExecutionConfig(gpus=(0, 1, 2), jobs=6).local_jobs == 6


def test_time_left_is_estimated_from_the_pace_of_this_runner() -> None:
    now = [0.0]
    cells = list(
        expand(spec(axes={"method": ["local", "fd", "fedproto", "feddbp"]}, report={}), seeds=(0,)).cells.values()
    )
    load = Workload(cells, clock=lambda: now[0])
    assert str(load) == "0 of 4 cells, 0.0 s"
    now[0] = 100.0
    load.advance(cells[0], 0.0)
    load.advance(cells[0], 0.5)  # resumed: the first half was done by an earlier runner
    assert load.seconds_left() is None
    load.finish(cells[0])
    assert load.seconds_left() == pytest.approx(600)  # half a cell took 100 s, three are left
    load.drop(cells[1])
    assert load.seconds_left() == pytest.approx(400)
    assert str(load) == "2 of 4 cells, 1 min 40 s, about 6 min 40 s left"
    load.finish(cells[2])
    load.advance(cells[3], 1.0)  # its last round is over, and its processes are not
    assert str(load) == "3 of 4 cells, 1 min 40 s"
    load.finish(cells[3])
    assert str(load) == "4 of 4 cells, 1 min 40 s"


def test_a_terminal_has_a_bar_for_all_cells_and_one_per_running_cell() -> None:
    cells = list(expand(spec(axes={"method": ["fd", "local"]}, report={}), seeds=(0,)).cells.values())
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    bars = LiveCellDisplay(workload=Workload(cells), console=console)
    bars.begin(cells[0])
    bars.show(cells[0], CellProgressReport(node="gpu-3", attempt=2, rounds=1.5))
    shown = printed(bars.bars, width=100)
    assert "FD on digits, α 0.1, E 10, seed 0" in shown
    assert "round 2 of 2 on gpu-3, attempt 2" in shown
    assert "0 of 2 cells" in shown
    bars.failed(cells[0], Failure(cause="exit code 7"))
    bars.end(cells[0])
    assert "FD on digits" not in printed(bars.bars, width=100)
    assert "1 of 2 cells" in printed(bars.bars, width=100)
    assert "exit code 7" in console.file.getvalue()  # type: ignore[attr-defined]
