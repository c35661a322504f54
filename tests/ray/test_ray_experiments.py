"""`feddbp experiment run --executor ray` on a Ray of two nodes on this machine, with real clients."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import Command, Federation, Outcome, federation, outcome_in, processes_naming, wait_until
from ray_clusters import RayCluster, needs_ray, ray_cluster

from feddbp_lab.cli import main

pytestmark = [needs_ray, pytest.mark.xdist_group("ray")]

GRID = """
title = "Small"
[base]
clients = 2
rounds = {rounds}
training = {{ local_epochs = 1, learning_rate = 0.05, feature_dim = 32 }}
data.alpha = 0.5
[axes]
method = [{methods}]
"""
TWO = '"feddbp", "fedproto"'


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as running:
        running.add_node()
        yield running


class Grids:
    """Starts runners of one grid, and finds what they left."""

    def __init__(self, running: Federation, address: str) -> None:
        self._running = running
        self._address = address
        self.nodes = running.directory / "nodes"
        """Where the cells work; their processes have it on their command line."""

    def run(self, out: str, *options: object, rounds: int = 2, methods: str = TWO, ray: bool = True) -> Command:
        path = self._running.directory / "grid.toml"
        path.write_text(GRID.format(rounds=rounds, methods=methods))
        on_ray = ("--executor", "ray", "--ray-address", self._address, "--work-dir", self.nodes) if ray else ()
        return self._running.start(
            "feddbp_lab.cli",
            "experiment",
            "run",
            path,
            "--out",
            self.out(out),
            *on_ray,
            *options,
            name="runner",
            env={"TMPDIR": os.environ.get("TMPDIR", "/tmp")},
            forked=False,
        )

    def out(self, name: str) -> Path:
        return self._running.directory / name

    def outcomes(self, name: str) -> dict[str, Outcome]:
        return {path.name: outcome_in(path) for path in (self.out(name) / "cells").iterdir()}

    def status(self, name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
        capsys.readouterr()
        assert main(["experiment", "status", str(self.out(name)), "--json"]) == 0
        cells: dict[str, Any] = json.loads(capsys.readouterr().out)["cells"]
        return cells


@pytest.fixture
def grids(cluster: RayCluster, tmp_path: Path) -> Iterator[Grids]:
    with federation(tmp_path / "grids") as running:
        yield Grids(running, cluster.address)


def test_a_grid_is_finished_by_two_nodes_with_the_bits_of_a_local_run(
    grids: Grids, capsys: pytest.CaptureFixture[str]
) -> None:
    on_ray = grids.run("ray")
    on_ray.expect_exit(0)
    assert on_ray.log.startswith("Small: 2 cells; on 2 Ray nodes with 2 CPUs, 0 GPUs\n")
    assert on_ray.log.count("\nbegin   ") == on_ray.log.count("\ndone    ") == 2
    assert (grids.out("ray") / "report" / "index.html").exists()
    for cell in grids.status("ray", capsys).values():
        assert (cell["state"], cell["attempts"]) == ("done", 1)
        assert cell["node"]
    assert processes_naming(grids.nodes) == []
    assert [path.name for path in grids.nodes.iterdir()] == [".in-use"]
    grids.run("local", ray=False).expect_exit(0)
    assert grids.outcomes("ray") == grids.outcomes("local")


def test_a_cell_that_asks_for_more_than_the_cluster_has_is_refused_with_the_numbers(grids: Grids) -> None:
    refused = grids.run("ray", "--num-cpus", 3, "--num-gpus", 1)
    refused.expect_exit(2)
    assert refused.log == (
        "feddbp: error: a cell asks for 3 CPUs, 1 GPU; no node of the Ray cluster has as much: 2 nodes, 1 CPU, 0 GPUs\n"
    )


def test_an_address_without_a_ray_is_one_line(grids: Grids) -> None:
    with socket.socket() as bound:  # it does not listen
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        refused = grids.run("ray", "--ray-address", address)
        refused.expect_exit(2)
    assert refused.log.startswith(f"feddbp: error: --ray-address {address}: no Ray answers there: ")


def test_an_interrupted_grid_leaves_no_process_and_is_resumed_where_it_was(
    grids: Grids, capsys: pytest.CaptureFixture[str]
) -> None:
    running = grids.run("ray", rounds=30)
    written = grids.nodes.glob
    # a server that nobody has joined has no run to keep
    wait_until(
        lambda: sum(path.stat().st_size > 0 for path in written("*/cell/server/metrics.jsonl")) == 2,
        "two cells with a round at the same time",
    )
    running.interrupt()
    running.expect_exit(130)
    assert "interrupted, every process is stopped; the same command resumes it" in running.log
    assert processes_naming(grids.nodes) == []
    cells = grids.status("ray", capsys)
    assert [cell["state"] for cell in cells.values()] == ["interrupted"] * 2
    assert len(list(grids.out("ray").glob("cells/*/copy-000001.json"))) == 2


@pytest.mark.full
def test_a_grid_that_loses_a_node_ends_with_the_bits_of_a_local_run(
    grids: Grids, cluster: RayCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = cluster.add_node()
    running = grids.run("ray", "--copy-rounds", 1, rounds=8, methods='"feddbp", "fedproto", "local"')
    copies = grids.out("ray").glob
    wait_until(lambda: len(list(copies("cells/*/copy-000001.json"))) == 3, "a copy of each cell")
    cluster.kill_node(extra)
    running.expect_exit(0)
    cells = grids.status("ray", capsys)
    assert sorted(cell["attempts"] for cell in cells.values()) == [1, 1, 2]
    assert processes_naming(grids.nodes) == []
    grids.run("local", ray=False, rounds=8, methods='"feddbp", "fedproto", "local"').expect_exit(0)
    assert grids.outcomes("ray") == grids.outcomes("local")


@pytest.mark.full
def test_no_process_outlives_a_killed_runner(grids: Grids) -> None:
    running = grids.run("ray", rounds=30)
    wait_until(lambda: len(list(grids.nodes.glob("*/cell/server/endpoint.json"))) == 2, "two cells at the same time")
    running.kill()
    wait_until(lambda: not processes_naming(grids.nodes), "the end of all processes")


@pytest.mark.full
def test_two_runners_share_a_directory_and_do_no_cell_twice(grids: Grids, capsys: pytest.CaptureFixture[str]) -> None:
    methods = '"feddbp", "fedproto", "local", "fd"'
    runners = [grids.run("shared", methods=methods), grids.run("shared", "--jobs", 1, methods=methods, ray=False)]
    for runner in runners:
        runner.expect_exit(0)
    begun = [line for runner in runners for line in runner.log.splitlines() if line.startswith("begin ")]
    assert len(begun) == len(set(begun)) == 4
    assert [cell["attempts"] for cell in grids.status("shared", capsys).values()] == [1] * 4
