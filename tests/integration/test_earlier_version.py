"""What version 0.1.0 left on disk is taken up by this version where it was left."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from earlier_versions import VERSION_0_1_0, accepted_uploads, lines_by_round, read_json, restore
from processes import Federation, federation
from run_identities import stored_run

STATE, EXPERIMENT = VERSION_0_1_0 / "state", VERSION_0_1_0 / "experiment"
ROUNDS, OPEN_ROUND, CLIENTS = 4, 2, (0, 1)


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """The killed run, once it was started with the options it was begun with and every process ended with 0."""
    with federation(tmp_path_factory.mktemp("earlier-version")) as running:
        restore(STATE, running.directory)
        options = read_json(running.directory / "options.json")
        server = running.server(*options["server"])
        clients = [running.client(number, *options["clients"][number]) for number in CLIENTS]
        for command in (*clients, server):
            command.expect_exit(0)
        yield running


def test_a_run_that_was_killed_in_the_middle_of_a_round_is_finished_under_its_id(finished_run: Federation) -> None:
    (clients_of_run,) = (STATE / "clients").iterdir()
    summary = finished_run.summary()
    assert (summary["outcome"], summary["completed_rounds"]) == ("finished", ROUNDS)
    assert summary["run_id"] == stored_run(finished_run.state_dir).run_id == clients_of_run.name
    assert [path.name for path in (finished_run.directory / "clients").iterdir()] == [clients_of_run.name]


def test_what_was_written_of_a_killed_run_stays_byte_for_byte(finished_run: Federation) -> None:
    before = lines_by_round(STATE / "server" / "metrics.jsonl")
    after = lines_by_round(finished_run.state_dir / "metrics.jsonl")
    assert set(before) == {*_places(OPEN_ROUND), (OPEN_ROUND, 0)}  # client 1 had not reported on the open round
    assert set(after) == _places(ROUNDS + 1)
    assert {place: after[place] for place in before} == before
    audited = (STATE / "server" / "audit.jsonl").read_text()
    assert (finished_run.state_dir / "audit.jsonl").read_text().startswith(audited)


def test_no_upload_of_a_killed_run_is_needed_twice(finished_run: Federation) -> None:
    assert accepted_uploads(STATE / "server") == sorted({*_places(OPEN_ROUND), (OPEN_ROUND, 0)})
    assert accepted_uploads(finished_run.state_dir) == sorted(_places(ROUNDS))


def test_a_killed_run_ends_as_the_version_that_began_it_would_have_ended_it(finished_run: Federation) -> None:
    """But for rounding, which differs between machines: losses of rounds to come depend on everything that was kept."""
    found = _losses(finished_run.state_dir / "metrics.jsonl")
    expected = _losses(STATE / "finished_metrics.jsonl")
    assert found == {place: pytest.approx(losses, rel=1e-2) for place, losses in expected.items()}


def test_an_experiment_that_was_killed_is_finished_without_running_what_is_done(running_federation: Federation) -> None:
    restore(EXPERIMENT, running_federation.directory)
    out = running_federation.directory / "out"
    (done,), (begun,) = out.glob("cells/feddbp-*"), out.glob("cells/fedproto-*")
    run_id = stored_run(begun / "server").run_id
    before = _files(done)

    _experiment(running_federation, "run", "small.toml", "--out", out, "--jobs", 1)
    assert _files(done) == before
    assert {path.name for path in (out / "cells").iterdir()} == {done.name, begun.name}
    assert read_json(begun / "summary.json")["run_id"] == run_id

    _experiment(running_federation, "report", out)
    with (out / "report" / "small.csv").open(newline="") as file:
        counted = {row["method"]: row for row in csv.DictReader(file) if row["counts"] == "yes"}
    assert {method: (row["done"], row["failed"]) for method, row in counted.items()} == {
        "feddbp:gentle": ("1", "0"),
        "fedproto": ("1", "0"),
    }
    for method, cell in (("feddbp:gentle", done), ("fedproto", begun)):
        best = read_json(cell / "summary.json")["accuracy"]["best"]["weighted"]
        assert float(counted[method]["accuracy_mean"]) == pytest.approx(100 * best)


def _places(rounds: int) -> set[tuple[int, int]]:
    return {(number, client) for number in range(rounds) for client in CLIENTS}


def _losses(metrics: Path) -> dict[tuple[int, int], Any]:
    return {place: json.loads(line)["losses"] for place, line in lines_by_round(metrics).items()}


def _files(directory: Path) -> dict[Path, tuple[bytes, int]]:
    """Contents and times of change of all files."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def _experiment(running: Federation, *arguments: object) -> None:
    running.start("feddbp_lab.cli", "experiment", *arguments, name="experiment").expect_exit(0)
