"""Network input from images that are decoded when they are read, and from pixels of every type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from data_samples import pixels, write_image
from PIL import Image

from feddbp_client.data import CacheSpace, clear_dataset_cache, load_private_data
from feddbp_client.data.file_rows import FileRows
from feddbp_client.data.images import in_memory
from feddbp_client.data.pixels import pixel_range
from feddbp_client.data.readers import image_folder
from feddbp_client.training.image_feed import ImageFeed
from feddbp_client.training.setup import LocalOptions, build_client
from feddbp_common.config.data import DataConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.config.training import TrainingConfig
from feddbp_common.wire import Payload

CPU = torch.device("cpu")


def assert_same(feed: ImageFeed, other: ImageFeed) -> None:
    positions = [torch.tensor([5, 0, 5]), torch.tensor([2])]
    assert len(feed) == len(other)
    assert torch.equal(feed[2:5], other[2:5])
    assert torch.equal(feed[positions[0]], other[positions[0]])
    for ours, theirs in zip(feed.batches(positions), other.batches(positions), strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


def test_images_from_files_are_those_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, image in enumerate(pixels(6)):
        write_image(tmp_path / "any" / f"{number}.png", image)
    monkeypatch.setattr(image_folder, "LARGEST_IN_MEMORY", 0)
    images = load_private_data(tmp_path, classes=1).train.images
    assert isinstance(images, FileRows)
    assert_same(ImageFeed(images, CPU), ImageFeed(in_memory(images), CPU))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_every_type_of_pixels_is_scaled_by_its_range(dtype: type) -> None:
    images = pixels(6).astype(dtype) * dtype(1 if dtype == np.uint8 else 257)
    images[0, 0, 0], images[1, 0, 0] = 0, np.iinfo(np.uint8 if dtype == np.uint8 else np.uint16).max
    feed = ImageFeed(images, CPU, pixels=pixel_range(images))
    found = feed[torch.arange(6)]
    expected = pixels(6).astype(np.float64) / 127.5 - 1
    expected[0, 0, 0], expected[1, 0, 0] = -1, 1
    np.testing.assert_allclose(found.permute(0, 2, 3, 1).numpy(), expected, atol=1e-6)
    assert np.array_equal(next(feed.batches([torch.arange(2)])).numpy().view(dtype).transpose(0, 2, 3, 1), images[:2])


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_a_round_on_images_from_files_has_the_bits_of_one_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: type
) -> None:
    for number, image in enumerate(pixels(24, side=20)):
        path = tmp_path / "data" / f"class{number % 2}" / f"{number}.tif"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image if dtype == np.uint8 else image[..., 0].astype(dtype) * 9).save(path)
    config = RunConfig(
        data=DataConfig(dataset="custom", classes=2, image_size=16),
        training=TrainingConfig(local_epochs=1, batch_size=4, feature_dim=32, augment="randaugment", validation=0.1),
    )
    options = LocalOptions(
        data=tmp_path / "data",
        data_dir=tmp_path,
        model=None,
        image_cache=CacheSpace(directory=tmp_path / "cache", size=10**8),
    )

    def weights() -> dict[str, torch.Tensor]:
        clear_dataset_cache()
        client = build_client(config, "run", 0, options)
        client.trainer.train(Payload(), 0, lambda *_: None)
        return client.trainer.method.state_dict()

    in_memory_weights = weights()
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(image_folder, "LARGEST_IN_MEMORY", 0)
    for _ in ("decoded", "cached"):
        found = weights()
        assert all(torch.equal(found[name], weight) for name, weight in in_memory_weights.items())
    assert (tmp_path / "cache").exists()
