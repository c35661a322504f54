"""The training and test samples of one client, as tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from feddbp_client.data.batches import channels_first, scaled
from feddbp_client.data.dataset_cache import cache_last
from feddbp_client.data.images import DataError
from feddbp_client.data.partition import (
    FEWEST_TO_TRAIN,
    dirichlet_split,
    least_samples,
    shuffled,
    train_test_split,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from feddbp_client.data.images import ImageParts, LabelledImages
    from feddbp_client.data.partition import Indices


@dataclass(frozen=True, eq=False)
class ClientData:
    train_images: torch.Tensor
    """float32 [n, channels, height, width] in [-1, 1]."""
    train_labels: torch.Tensor
    """int64 [n]."""
    test_images: torch.Tensor
    test_labels: torch.Tensor
    classes: int
    class_names: tuple[str, ...]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        _, channels, height, width = self.train_images.shape
        return channels, height, width

    @property
    def label_counts(self) -> npt.NDArray[np.int64]:
        """Training samples of each class, which the client sends when it joins."""
        return np.bincount(self.train_labels.numpy(), minlength=self.classes).astype(np.int64)


def shard_of(
    dataset: LabelledImages, *, clients: int, alpha: float, seed: int, client_id: int, batch_size: int
) -> ClientData:
    """A client's part of a public data set; every client computes the whole split itself."""
    if not 0 <= client_id < clients:
        raise DataError(f"client id {client_id} is outside 0..{clients - 1}")
    least = least_samples(len(dataset), clients, batch_size)
    own = _split(dataset, clients, alpha, seed, least)[client_id]
    train, test = train_test_split(len(own), seed=seed, client_id=client_id)
    return _client_data(dataset, own[train], dataset, own[test])


def private_shard(parts: ImageParts, *, seed: int, client_id: int) -> ClientData:
    """All of a client's private data; tested on its test part or, without one, on a quarter."""
    samples = len(parts.train)
    if parts.test is None:
        train, test = train_test_split(samples, seed=seed, client_id=client_id)
        return _client_data(parts.train, train, parts.train, test)
    if samples < FEWEST_TO_TRAIN:
        raise DataError(f"client {client_id} has {samples} training samples, it needs at least {FEWEST_TO_TRAIN}")
    # Shuffled as every shard is: a folder is sorted by class, and not every loader shuffles.
    return _client_data(
        parts.train, shuffled(samples, seed=seed, client_id=client_id), parts.test, np.arange(len(parts.test))
    )


@cache_last
def _split(dataset: LabelledImages, clients: int, alpha: float, seed: int, least: int) -> tuple[Indices, ...]:
    return dirichlet_split(dataset.labels, clients=clients, alpha=alpha, seed=seed, least=least)


def _client_data(train: LabelledImages, train_rows: Indices, test: LabelledImages, test_rows: Indices) -> ClientData:
    return ClientData(
        train_images=scaled(channels_first(train.images[train_rows])),
        train_labels=torch.from_numpy(train.labels[train_rows]),
        test_images=scaled(channels_first(test.images[test_rows])),
        test_labels=torch.from_numpy(test.labels[test_rows]),
        classes=len(train.class_names),
        class_names=train.class_names,
    )
