"""A process that hosts clients keeps their shards, and the data set they were cut from only while it is needed."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest
import torch

from feddbp_client.data import SharedDatasetCache, load_dataset
from feddbp_client.training.setup import LocalClient, LocalOptions, build_client
from feddbp_common.config.run import DataConfig, RunConfig, TrainingConfig
from feddbp_common.errors import ConfigurationError

CONFIG = RunConfig(
    clients=3, data=DataConfig(dataset="digits", alpha=1.0), training=TrainingConfig(batch_size=16, feature_dim=32)
)


class Process:
    """As many clients as it is told, which load the digits together."""

    def __init__(self, *client_ids: int) -> None:
        self._options = LocalOptions(
            data=None,
            data_dir=Path(),
            model=None,
            device=torch.device("cpu"),
            amp=False,
            dataset_cache=SharedDatasetCache(client_ids),
        )

    def build_client(self, client_id: int) -> LocalClient:
        return build_client(CONFIG, "run", client_id, self._options)


def loaded_images() -> weakref.ref[object]:
    """Whether the images that are in memory now still are, later on."""
    return weakref.ref(load_dataset("digits", Path()).images)


def test_the_data_set_is_freed_when_the_last_client_has_its_shard() -> None:
    process = Process(0, 2)
    first = process.build_client(0)
    images = loaded_images()
    assert images() is not None
    last = process.build_client(2)
    assert images() is None
    assert all(len(prepared.data.train_images) > 0 for prepared in (first, last))


def test_a_client_that_prepares_twice_does_not_count_for_another() -> None:
    process = Process(0, 1)
    process.build_client(0)
    images = loaded_images()
    process.build_client(0)
    assert images() is not None


def test_a_client_that_cannot_go_on_does_not_keep_it() -> None:
    process = Process(0, 3)
    process.build_client(0)
    images = loaded_images()
    with pytest.raises(ConfigurationError, match="client id 3 is not one of this run's 0 to 2"):
        process.build_client(3)
    assert images() is None


def test_another_run_frees_it_again() -> None:
    process = Process(0, 1)
    for _ in range(2):
        process.build_client(1)
        images = loaded_images()
        process.build_client(0)
        assert images() is None
