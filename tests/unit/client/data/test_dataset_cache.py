"""The data set cache of a process, which is cleared when all clients have their shards."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest

from feddbp_client.data import SharedDatasetCache, load_dataset
from feddbp_client.training.setup import LocalClient, LocalOptions, build_client
from feddbp_common.config.data import DataConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.config.training import TrainingConfig
from feddbp_common.errors import ConfigurationError

CONFIG = RunConfig(
    clients=3, data=DataConfig(dataset="digits", alpha=1.0), training=TrainingConfig(batch_size=16, feature_dim=32)
)


class Process:
    """A process with these clients, which share the digits."""

    def __init__(self, *client_ids: int) -> None:
        self._options = LocalOptions(
            data=None,
            data_dir=Path(),
            model=None,
            dataset_cache=SharedDatasetCache(client_ids),
        )

    def build_client(self, client_id: int) -> LocalClient:
        return build_client(CONFIG, "run", client_id, self._options)


def loaded_images() -> weakref.ref[object]:
    """A weak reference to the cached images, empty once they are freed."""
    return weakref.ref(load_dataset("digits", Path()).images)


def test_the_data_set_is_freed_when_the_last_client_has_its_shard() -> None:
    process = Process(0, 2)
    first = process.build_client(0)
    images = loaded_images()
    assert images() is not None
    last = process.build_client(2)
    assert images() is None
    assert all(len(client.data.train) > 0 for client in (first, last))


def test_a_client_that_is_built_twice_releases_the_cache_once() -> None:
    process = Process(0, 1)
    process.build_client(0)
    images = loaded_images()
    process.build_client(0)
    assert images() is not None


def test_a_client_that_fails_to_load_releases_the_cache() -> None:
    process = Process(0, 3)
    process.build_client(0)
    images = loaded_images()
    with pytest.raises(ConfigurationError, match="client id 3 is not one of this run's 0 to 2"):
        process.build_client(3)
    assert images() is None


def test_the_cache_is_cleared_again_in_another_run() -> None:
    process = Process(0, 1)
    for _ in range(2):
        process.build_client(1)
        images = loaded_images()
        process.build_client(0)
        assert images() is None
