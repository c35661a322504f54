from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from data_samples import pixels

from feddbp_client.data import (
    ClientData,
    DataError,
    ImageParts,
    LabelledImages,
    Split,
    dirichlet_split,
    private_shard,
    shard,
    shard_of,
)
from feddbp_client.data.images import in_memory

NAMES = tuple("abcd")


def numbered(count: int, *, side: int = 4) -> LabelledImages:
    """Image i has i in its first two bytes, so that it can be identified in a shard."""
    images = pixels(count, side=side)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = np.arange(count) // 256, np.arange(count) % 256
    return LabelledImages(images, np.arange(count) % 4, NAMES)


def identities(split: Split) -> list[int]:
    images = split.images[np.arange(len(split))].astype(int)
    return [int(number) for number in images[:, 0, 0, 0] * 256 + images[:, 0, 0, 1]]


def shards(data: LabelledImages, **options: Any) -> list[ClientData]:
    settings = {"clients": 5, "alpha": 0.5, "seed": 1, "batch_size": 8, **options}
    return [shard_of(data, client_id=client, **settings) for client in range(settings["clients"])]


def test_the_shards_of_all_clients_are_the_data_set() -> None:
    parts = shards(numbered(400))
    everyone = [number for part in parts for split in (part.train, part.test) for number in identities(split)]
    assert sorted(everyone) == list(range(400))


def test_a_shard_may_keep_a_part_of_its_training_samples_and_all_of_its_test_samples() -> None:
    data = numbered(400)
    for whole, part in zip(shards(data), shards(data, train_samples=20, validation=0.1), strict=True):
        assert part.validation is not None
        kept = [*identities(part.train), *identities(part.validation)]
        assert kept == identities(whole.train)[:20]
        assert len(part.validation) == 2
        assert identities(part.test) == identities(whole.test)


def test_labels_stay_with_their_images() -> None:
    for part in shards(numbered(400)):
        assert [number % 4 for number in identities(part.train)] == part.train.labels.tolist()
        assert [number % 4 for number in identities(part.test)] == part.test.labels.tolist()


def test_a_shard_is_ready_to_train_on() -> None:
    data = numbered(400)
    part = shards(data)[2]
    assert part.train.images.dtype == np.uint8
    assert part.train.labels.dtype == part.test.labels.dtype == torch.int64
    assert part.image_shape == (3, 4, 4)
    assert part.classes == 4
    assert part.class_names == NAMES
    assert part.label_counts.tolist() == [int((part.train.labels == c).sum()) for c in range(4)]
    first = in_memory(data.images)[identities(part.train)[0]]
    assert (part.train.images[np.array([0])][0] == first).all()


def test_the_batch_size_decides_the_least_a_client_holds() -> None:
    sizes = [len(part.train.labels) + len(part.test.labels) for part in shards(numbered(400), batch_size=8, alpha=0.1)]
    assert min(sizes) >= 32


def test_a_class_without_training_samples_has_a_count_of_zero() -> None:
    part = shards(numbered(400), alpha=0.05)[0]
    assert len(part.label_counts) == 4
    assert part.label_counts.sum() == len(part.train.labels)


def test_a_client_outside_the_run_has_no_shard() -> None:
    with pytest.raises(DataError, match=r"client id 5 is outside 0\.\.4"):
        shard_of(numbered(400), clients=5, alpha=1.0, seed=1, client_id=5, batch_size=8)


def test_the_split_is_computed_once_for_all_clients_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return dirichlet_split(*args, **kwargs)

    monkeypatch.setattr(shard, "dirichlet_split", counted)
    data = numbered(400)
    threads = [threading.Thread(target=shards, args=(data,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1


def test_private_data_without_a_test_part_is_tested_on_a_quarter() -> None:
    part = private_shard(ImageParts(numbered(40)), seed=1, client_id=3)
    assert (len(part.train.labels), len(part.test.labels)) == (30, 10)
    assert sorted(identities(part.train) + identities(part.test)) == list(range(40))


def test_private_data_with_a_test_part_keeps_it_and_shuffles_only_the_training_part() -> None:
    part = private_shard(ImageParts(numbered(40), numbered(7)), seed=1, client_id=3)
    assert identities(part.test) == list(range(7))
    assert identities(part.train) != list(range(40))
    assert sorted(identities(part.train)) == list(range(40))


def test_private_data_with_too_few_samples_is_refused() -> None:
    with pytest.raises(DataError, match="client 3 has 1 training samples, it needs at least 2"):
        private_shard(ImageParts(numbered(1), numbered(7)), seed=1, client_id=3)
    with pytest.raises(DataError, match="client 3 has 2 samples, it needs at least 3"):
        private_shard(ImageParts(numbered(2)), seed=1, client_id=3)
