"""Experiments with real clients."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from light_runs import exits, start_client, start_server, status_when
from processes import Command, Federation, outcome_in, processes_naming, wait_until

from feddbp_common.artifacts import CELL_FAILURE_NAME, METRICS_NAME, SUMMARY_NAME

GRID = """
title = "Small"
[base]
clients = {clients}
rounds = {rounds}
method = "feddbp"
training = {{ local_epochs = 1, learning_rate = 0.05, feature_dim = 32 }}
data.alpha = 0.5
[axes]
data.dataset = ["{dataset}"]
"""
NEWCOMER = """
title = "Newcomers"
controls = true
[base]
clients = 4
newcomers = 2
rounds = 5
newcomer_rounds = 3
newcomer_samples = 12
finetune_rounds = 1
training = { local_epochs = 1, learning_rate = 0.05, feature_dim = 32 }
data.alpha = 0.5
[axes]
method = ["fedavg"]
"""
SAME_RUN = (
    *("--clients", 2, "--min-clients", 2, "--rounds", 3, "--round-deadline", 0, "--alpha", 0.5),
    *("--local-epochs", 1, "--learning-rate", 0.05, "--feature-dim", 32),
)
"""The grid's only run, for the server's command line."""


class Experiments:
    """Runs `feddbp experiment run` on a grid of one cell."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self.data = federation.directory / "data"
        self.data.mkdir()

    def run(self, out: str, dataset: str, *more: object, clients: int = 2, rounds: int = 3) -> Command:
        path = self._federation.directory / "grid.toml"
        path.write_text(GRID.format(dataset=dataset, clients=clients, rounds=rounds))
        options = ("--out", self.out(out), "--data-dir", self.data, *more)
        return self._federation.start("feddbp_lab.cli", "experiment", "run", path, *options, name="runner")

    def out(self, name: str) -> Path:
        return self._federation.directory / name

    def cell(self, out: str) -> Path:
        (cell,) = (self.out(out) / "cells").iterdir()
        return cell


@pytest.fixture
def experiments(running_federation: Federation) -> Experiments:
    return Experiments(running_federation)


async def test_a_killed_runner_resumes_to_the_same_bits(
    experiments: Experiments, running_federation: Federation
) -> None:
    killed = experiments.run("disturbed", "digits")
    endpoints = experiments.out("disturbed").glob
    (endpoint,) = await asyncio.to_thread(
        wait_until, lambda: list(endpoints("cells/*/server/endpoint.json")), "the start of the run"
    )
    address = f"127.0.0.1:{json.loads(endpoint.read_text())['port']}"
    await status_when(address, lambda status: status.round == 1, "the second round")
    killed.kill()
    # at once, while processes of the killed runner may still be ending
    resumed = experiments.run("disturbed", "digits")
    await exits(resumed, 0)
    cell = experiments.cell("disturbed")
    assert (cell / "logs" / "server.log").read_text().count("listening on") == 2
    digest, lines = outcome_in(cell)
    assert len(lines) == 2 * 4
    assert processes_naming(experiments.out("disturbed")) == []
    server = await start_server(running_federation, *SAME_RUN)
    clients = await start_client(running_federation, "0-1")
    for command in (clients, server):
        await exits(command, 0)
    assert (digest, lines) == running_federation.outcome()


def test_a_lost_cell_goes_on_from_its_last_copy_to_the_same_bits(experiments: Experiments) -> None:
    node = experiments.out("node")
    on_node = ("--work-dir", node, "--copy-rounds", 1)
    killed = experiments.run("disturbed", "digits", *on_node, rounds=6)
    wait_until(lambda: list(experiments.out("disturbed").glob("cells/*/copy-000001.json")), "a copy of the state")
    killed.kill()
    wait_until(lambda: not processes_naming(node), "the end of all processes")
    cell = experiments.cell("disturbed")
    assert not (cell / "server").exists()
    experiments.run("disturbed", "digits", "--work-dir", experiments.out("other"), rounds=6).expect_exit(0)
    assert (cell / "logs" / "server.log").read_text().count("resuming the run") == 1
    assert json.loads((cell / "cost.json").read_text())["attempts"] == 2
    assert {path.name for path in cell.iterdir()} == {
        *("config.json", "cost.json", "metrics.jsonl", "summary.json", "logs")
    }
    assert [path.name for path in experiments.out("other").iterdir()] == [".in-use"]
    experiments.run("undisturbed", "digits", rounds=6).expect_exit(0)
    assert outcome_in(cell) == outcome_in(experiments.cell("undisturbed"))


def test_newcomers_join_a_finished_federation_and_are_reported_alone(running_federation: Federation) -> None:
    path, out = running_federation.directory / "grid.toml", running_federation.directory / "out"
    path.write_text(NEWCOMER)
    running_federation.start("feddbp_lab.cli", "experiment", "run", path, "--out", out, name="runner").expect_exit(0)
    for cell in (out / "cells").iterdir():
        lines = [json.loads(line) for line in (cell / METRICS_NAME).read_text().splitlines()]
        taking_part = {number: {line["client"] for line in lines if line["round"] == number} for number in range(6)}
        assert taking_part == {0: {0, 1}, 1: {0, 1}, 2: {2, 3}, 3: {2, 3}, 4: {2, 3}, 5: {0, 1, 2, 3}}
        clients = json.loads((cell / SUMMARY_NAME).read_text())["per_client"]
        assert [client["train_samples"] for client in clients[2:]] == [12, 12]
        # before its first training a newcomer has the state of the others, or nothing
        received = {line["client"]: line["bytes_down"] for line in lines if line["round"] == 2}
        assert all((count > 10_000) is ("no-exchange" not in cell.name) for count in received.values())
    markdown = (out / "report" / "grid.md").read_text()
    assert "over all newcomers' test samples, after the last round" in markdown
    assert "| FedAvg, no exchange |" in markdown


def test_a_cell_without_its_data_fails_and_is_run_again_with_them(experiments: Experiments) -> None:
    archive = experiments.data / "cifar10.npz"
    archive.write_bytes(b"not images")
    experiments.run("out", "cifar10", clients=1, rounds=1).expect_exit(5)
    cell = experiments.cell("out")
    failure = json.loads((cell / CELL_FAILURE_NAME).read_text())
    assert "cifar10.npz: not an npz file, or truncated (the process of client 0, exit code" in failure["cause"]
    images = np.random.default_rng(0).integers(0, 256, (100, 32, 32, 3), dtype=np.uint8)
    np.savez(archive, x_train=images, y_train=np.arange(100) % 10)
    experiments.run("out", "cifar10", clients=1, rounds=1).expect_exit(5)
    assert not (cell / SUMMARY_NAME).exists()
    experiments.run("out", "cifar10", "--retry-failed", clients=1, rounds=1).expect_exit(0)
    assert (cell / SUMMARY_NAME).exists()
    assert not (cell / CELL_FAILURE_NAME).exists()
