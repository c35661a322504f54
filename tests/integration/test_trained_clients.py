"""From training to use: a demo's clients, brought back by the commands a person would type."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from feddbp_client.data import ClientData, load_dataset, shard_of
from feddbp_client.inference.trained_client import TrainedClient
from feddbp_client.training.checkpoint import Checkpoint
from feddbp_common.artifacts import CHECKPOINT_NAME

CLIENTS, ALPHA = 2, 5.0


def feddbp(*arguments: object, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "feddbp_lab.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        # tests run on every core at once, where threads of one would wait for those of another
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished demo, run where the commands of the tests run."""
    where = tmp_path_factory.mktemp("demo")
    options = ["--clients", CLIENTS, "--rounds", 1, "--alpha", ALPHA, "--local-epochs", 2]
    feddbp("demo", *options, "--out", "run", "--device", "cpu", cwd=where)
    return where


def directory_of(demo: Path, client_id: int) -> Path:
    (found,) = (demo / "run" / "clients").glob(f"*/client-{client_id}")
    return found


def data_of(client_id: int) -> ClientData:
    digits = load_dataset("digits", Path())
    return shard_of(digits, clients=CLIENTS, alpha=ALPHA, seed=0, client_id=client_id, batch_size=32)


def test_a_trained_client_names_the_digit_on_a_png(demo: Path) -> None:
    digits = load_dataset("digits", Path())
    images = [f"{number}.png" for number in range(20)]
    for name, pixels in zip(images, digits.images, strict=False):
        Image.fromarray(pixels[..., 0]).save(demo / name)
    printed = feddbp("predict", directory_of(demo, 1), *images, "--json", "--device", "cpu", cwd=demo)
    answers = [json.loads(line) for line in printed.splitlines()]
    assert [answer["image"] for answer in answers] == images
    right = [int(answer["class"]) == label for answer, label in zip(answers, digits.labels, strict=False)]
    assert sum(right) >= 14
    assert {answer["measure"] for answer in answers} == {"distance"}


@pytest.mark.parametrize("client_id", range(CLIENTS))
def test_it_is_as_often_right_as_it_was_in_its_last_evaluation(client_id: int, demo: Path) -> None:
    directory = directory_of(demo, client_id)
    metrics = Checkpoint.load(directory / CHECKPOINT_NAME).metrics
    (counted,) = (each.correct for each in metrics.accuracies if each.rule == metrics.inference)
    data = data_of(client_id)
    pixels = data.test_images.add(1).mul(127.5).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    predictions = TrainedClient.load(directory, device="cpu").predict(pixels)
    right = [found.best.class_id == label for found, label in zip(predictions, data.test_labels.tolist(), strict=True)]
    assert len(right) == metrics.test_samples
    assert sum(right) == counted
