"""Experiments with clients that really train."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import Command, Federation, processes_naming, wait_until

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


class Experiments:
    """`feddbp experiment run` on data sets that are there, or are not."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self.data = federation.directory / "data"
        self.data.mkdir()

    def run(self, out: str, dataset: str, *, clients: int = 2, rounds: int = 3) -> Command:
        path = self._federation.directory / "grid.toml"
        path.write_text(GRID.format(dataset=dataset, clients=clients, rounds=rounds))
        options = ("--out", self.out(out), "--data-dir", self.data)
        return self._federation.start("feddbp_lab.cli", "experiment", "run", path, *options, name="runner")

    def out(self, name: str) -> Path:
        return self._federation.directory / name

    def outcome(self, out: str) -> tuple[str, list[dict[str, Any]]]:
        """What must be the same however a run was disturbed: the prototypes, and every result but the seconds."""
        (cell,) = (self.out(out) / "cells").iterdir()
        lines = [json.loads(line) for line in (cell / METRICS_NAME).read_text().splitlines()]
        for line in lines:
            del line["seconds"]
        digest = json.loads((cell / SUMMARY_NAME).read_text())["prototypes_sha256"]
        return digest, sorted(lines, key=lambda line: (line["round"], line["client"]))


@pytest.fixture
def experiments(running_federation: Federation) -> Experiments:
    return Experiments(running_federation)


def test_a_runner_that_is_killed_goes_on_to_the_same_result_bit_by_bit(experiments: Experiments) -> None:
    experiments.run("undisturbed", "digits").expect_exit(0)
    killed = experiments.run("disturbed", "digits")
    (metrics,) = wait_until(
        lambda: list(experiments.out("disturbed").glob(f"cells/*/server/{METRICS_NAME}")), "the start of the run"
    )
    wait_until(lambda: '"round": 1' in metrics.read_text(), "the second round")
    killed.kill()
    # at once, while the processes of the killed one may still be on their way out
    resumed = experiments.run("disturbed", "digits")
    resumed.expect_exit(0)
    (cell,) = (experiments.out("disturbed") / "cells").iterdir()
    assert (cell / "logs" / "server.log").read_text().count("listening on") == 2
    digest, lines = experiments.outcome("disturbed")
    assert (digest, lines) == experiments.outcome("undisturbed")
    assert len(lines) == 2 * 4
    assert processes_naming(experiments.out("disturbed")) == []


def test_a_cell_without_its_data_fails_and_is_done_once_they_are_there(experiments: Experiments) -> None:
    archive = experiments.data / "cifar10.npz"
    archive.write_bytes(b"not images")
    experiments.run("out", "cifar10", clients=1, rounds=1).expect_exit(5)
    (cell,) = (experiments.out("out") / "cells").iterdir()
    failure = json.loads((cell / CELL_FAILURE_NAME).read_text())
    assert "cifar10.npz: not an npz file, or truncated (the process of client 0, exit code" in failure["cause"]
    images = np.random.default_rng(0).integers(0, 256, (100, 32, 32, 3), dtype=np.uint8)
    np.savez(archive, x_train=images, y_train=np.arange(100) % 10)
    experiments.run("out", "cifar10", clients=1, rounds=1).expect_exit(0)
    assert (cell / SUMMARY_NAME).exists()
    assert not (cell / CELL_FAILURE_NAME).exists()
