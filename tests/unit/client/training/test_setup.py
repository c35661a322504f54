"""Private and public images at the run's size; clients that resume with images of another size or other pixels."""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.training.client_directory import ClientDirectory
from feddbp_client.training.setup import LocalClient, LocalOptions, build_client, load_client_data, restore_checkpoint
from feddbp_common.config.data import DataConfig
from feddbp_common.config.run import RunConfig, run_from_proto, run_to_proto
from feddbp_common.config.training import TrainingConfig
from feddbp_common.errors import ConfigurationError


def config(image_size: int | None = None) -> RunConfig:
    return RunConfig(
        method="local",
        data=DataConfig(dataset="custom", class_names=("cat", "dog"), image_size=image_size),
        training=TrainingConfig(feature_dim=16),
    )


def pictures(path: Path, side: int) -> Path:
    for name in ("cat", "dog"):
        folder = path / name
        folder.mkdir(parents=True)
        for number in range(6):
            Image.fromarray(np.full((side, side, 3), 20 * number, np.uint8)).save(folder / f"{number}.png")
    return path


def built(data: Path, image_size: int | None = None, *, model: str | None = None) -> LocalClient:
    options = LocalOptions(data=data, data_dir=Path(), model=model)
    # as a client receives it
    return build_client(run_from_proto(run_to_proto(config(image_size))), "run", 0, options)


@pytest.mark.parametrize(
    ("side", "image_size", "expected"), [(20, None, 20), (100, None, 64), (20, 40, 40), (100, 96, 96)]
)
def test_images_have_the_size_of_the_run_or_else_their_own(
    tmp_path: Path, side: int, image_size: int | None, expected: int
) -> None:
    assert built(pictures(tmp_path, side), image_size).data.image_shape == (3, expected, expected)


@pytest.mark.parametrize(("image_size", "expected"), [(None, 64), (32, 32), (64, 64)])
def test_public_images_are_scaled_to_the_size_of_the_run(tmp_path: Path, image_size: int | None, expected: int) -> None:
    images = np.repeat(np.arange(204, dtype=np.uint8), 64 * 64 * 3).reshape(204, 64, 64, 3)
    np.savez(tmp_path / "flowers102.npz", x_train=images, y_train=np.arange(204) % 102)
    run = RunConfig(
        method="local",
        clients=2,
        data=DataConfig(dataset="flowers102", alpha=10, image_size=image_size),
        training=TrainingConfig(validation=0.1),
    )
    options = LocalOptions(data=None, data_dir=tmp_path, model=None)
    data = load_client_data(run, 0, options)
    assert data.image_shape == (3, expected, expected)
    assert data.validation is not None
    for split in (data.train, data.validation, data.test):
        assert split.images.shape == (len(split), expected, expected, 3)
        shown = split.images[np.arange(len(split))]
        assert (shown[:, 0, 0, 0] % 102 == split.labels.numpy()).all()  # each label with its own image


def test_a_client_that_resumes_with_images_of_another_size_is_refused(tmp_path: Path) -> None:
    directory = ClientDirectory(tmp_path / "state", "run", 0)
    before = built(pictures(tmp_path / "before", 20))
    before.checkpoint(0, pb.RoundMetrics()).save(directory.checkpoint)
    assert restore_checkpoint(before, directory) is not None
    after = built(pictures(tmp_path / "after", 24))
    with pytest.raises(ConfigurationError, match=r"with images of shape \[3, 20, 20\], not \[3, 24, 24\];"):
        restore_checkpoint(after, directory)
    directory.close()


def test_a_client_that_resumes_with_an_edited_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "own_networks.py"
    source = "from torch import nn\ndef net(shape):\n    return nn.Sequential(nn.Flatten(), nn.Linear(1200, {}))\n"
    monkeypatch.syspath_prepend(tmp_path)
    directory = ClientDirectory(tmp_path / "state", "run", 0)
    clients = []
    for width in ("32", "480"):  # of other sizes: two files of the same second may share their bytecode
        model.write_text(source.format(width))
        monkeypatch.delitem(sys.modules, "own_networks", raising=False)
        importlib.invalidate_caches()
        clients.append(built(pictures(tmp_path / width, 20), model="own_networks:net"))
    before, after = clients
    before.checkpoint(0, pb.RoundMetrics()).save(directory.checkpoint)
    assert restore_checkpoint(before, directory) is not None
    with pytest.raises(ConfigurationError, match=r"do not fit own_networks:net any more: backbone.*another shape;"):
        restore_checkpoint(after, directory)
    directory.close()


def test_a_client_logs_what_it_has_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        client = built(pictures(tmp_path, 20))
    (line,) = caplog.messages
    train, test = len(client.data.train), len(client.data.test)
    assert line.startswith(
        f"client 0: {train} training and {test} test images of 20x20 (RGB), 2 of 2 classes, from {tmp_path}; "
    )
    assert line.endswith(" parameters on cpu")


def test_a_client_that_resumes_with_pixels_of_another_range_is_refused(tmp_path: Path) -> None:
    directory = ClientDirectory(tmp_path / "state", "run", 0)
    images, labels = np.zeros((8, 20, 20, 3), np.float32), np.arange(8) % 2
    for name, brightest in (("before", 3000), ("after", 9000)):
        images[:, 0] = brightest
        np.savez(tmp_path / name, x_train=images, y_train=labels)
    before = built(tmp_path / "before.npz")
    before.checkpoint(0, pb.RoundMetrics()).save(directory.checkpoint)
    assert restore_checkpoint(before, directory) is not None
    with pytest.raises(ConfigurationError, match="float32, from 0 to 3000, not float32, from 0 to 9000; give the same"):
        restore_checkpoint(built(tmp_path / "after.npz"), directory)
    directory.close()


def test_a_client_whose_deeper_images_were_read_as_bytes_resumes(tmp_path: Path) -> None:
    """As after an upgrade: the scale is the same, only finer."""
    directory = ClientDirectory(tmp_path / "state", "run", 0)
    before = built(pictures(tmp_path / "before", 20))
    before.checkpoint(0, pb.RoundMetrics()).save(directory.checkpoint)
    for path in pictures(tmp_path / "after", 20).rglob("*.png"):
        Image.fromarray(np.full((20, 20), 5000, np.uint16)).save(path)
    after = built(tmp_path / "after")
    assert after.data.pixels.dtype == "uint16"
    assert restore_checkpoint(after, directory) is not None
    directory.close()
