"""Clients trained by a demo, used for prediction."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from processes import federation

from feddbp_client.data import ClientData, load_dataset, shard_of
from feddbp_client.data.images import in_memory
from feddbp_client.inference.trained_client import TrainedClient
from feddbp_client.training.checkpoint import Checkpoint
from feddbp_common.artifacts import CHECKPOINT_NAME
from feddbp_lab.cli import main

CLIENTS, ALPHA = 2, 5.0


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of a finished demo."""
    where = tmp_path_factory.mktemp("demo")
    with federation(where) as running:
        run = ("--clients", CLIENTS, "--rounds", 1, "--alpha", ALPHA, "--local-epochs", 2)
        machine = ("--processes", 1, "--out", "run", "--device", "cpu")
        running.start("feddbp_lab.cli", "demo", *run, *machine, name="demo").expect_exit(0)
    return where


def directory_of(demo: Path, client_id: int) -> Path:
    (found,) = (demo / "run" / "clients").glob(f"*/client-{client_id}")
    return found


def data_of(client_id: int) -> ClientData:
    digits = load_dataset("digits", Path())
    return shard_of(digits, clients=CLIENTS, alpha=ALPHA, seed=0, client_id=client_id, batch_size=32)


def test_a_trained_client_classifies_png_files(
    demo: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = load_dataset("digits", Path())
    images = [f"{number}.png" for number in range(20)]
    for name, pixels in zip(images, in_memory(digits.images), strict=False):
        Image.fromarray(pixels[..., 0]).save(demo / name)
    monkeypatch.chdir(demo)
    assert main(["predict", str(directory_of(demo, 1)), *images, "--json", "--device", "cpu"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["image"] for answer in answers] == images
    right = [int(answer["class"]) == label for answer, label in zip(answers, digits.labels, strict=False)]
    assert sum(right) >= 14
    assert {answer["measure"] for answer in answers} == {"distance"}


@pytest.mark.parametrize("client_id", range(CLIENTS))
def test_predictions_are_as_accurate_as_in_the_last_evaluation(client_id: int, demo: Path) -> None:
    directory = directory_of(demo, client_id)
    metrics = Checkpoint.load(directory / CHECKPOINT_NAME).metrics
    (counted,) = (each.correct for each in metrics.accuracies if each.rule == metrics.inference)
    data = data_of(client_id)
    pixels = data.test.images[np.arange(len(data.test))]
    predictions = TrainedClient.load(directory, device="cpu").predict(pixels)
    right = [found.best.class_id == label for found, label in zip(predictions, data.test.labels.tolist(), strict=True)]
    assert len(right) == metrics.test_samples
    assert sum(right) == counted
