"""The training and test samples of one client."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from feddbp_client.data.dataset_cache import cache_last
from feddbp_client.data.decoding import equal_sizes, resized, scaling_note
from feddbp_client.data.file_rows import FileRows
from feddbp_client.data.images import DataError
from feddbp_client.data.partition import (
    FEWEST_TO_TRAIN,
    dirichlet_split,
    held_out_samples,
    least_samples,
    shuffled,
    train_test_split,
)
from feddbp_client.data.pixels import BYTES, PixelRange, pixel_range

if TYPE_CHECKING:
    import numpy.typing as npt

    from feddbp_client.data.images import ImageParts, ImageRows, LabelledImages
    from feddbp_client.data.partition import Indices


_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Split:
    """Labelled images of one purpose: training, validation or test."""

    images: ImageRows
    labels: torch.Tensor
    """int64 [n]."""

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class ClientData:
    train: Split
    test: Split
    classes: int
    class_names: tuple[str, ...]
    validation: Split | None = None
    """Held out of the training samples, to choose the best round on."""
    pixels: PixelRange = BYTES
    """How stored pixels are scaled, in training and afterwards."""

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        _, height, width, channels = self.train.images.shape
        return channels, height, width

    @property
    def label_counts(self) -> npt.NDArray[np.int64]:
        """Training samples of each class, which the client sends when it joins."""
        return np.bincount(self.train.labels.numpy(), minlength=self.classes).astype(np.int64)


def at_image_size(data: ClientData, size: int) -> ClientData:
    """The same samples with images scaled to squares of that side; unchanged if they have it."""
    if data.image_shape[1:] == (size, size):
        return data
    sizes = equal_sizes(data.train.images, data.test.images)
    _log.info("%s", scaling_note(sizes, size, chosen=True))
    return replace(
        data,
        train=_scaled(data.train, size),
        test=_scaled(data.test, size),
        validation=None if data.validation is None else _scaled(data.validation, size),
    )


def shard_of(
    dataset: LabelledImages,
    *,
    clients: int,
    alpha: float,
    seed: int,
    client_id: int,
    batch_size: int,
    validation: float = 0.0,
    train_samples: int | None = None,
) -> ClientData:
    """A client's part of a public data set; every client computes the whole split itself.

    With `train_samples` it keeps so many of its training samples, drawn at random, and all of its test samples.
    """
    if not 0 <= client_id < clients:
        raise DataError(f"client id {client_id} is outside 0..{clients - 1}")
    least = least_samples(len(dataset), clients, batch_size)
    own = _dirichlet(dataset, clients, alpha, seed, least)[client_id]
    train, test = train_test_split(len(own), seed=seed, client_id=client_id)
    return _client_data(dataset, own[train[:train_samples]], dataset, own[test], validation)


def private_shard(parts: ImageParts, *, seed: int, client_id: int, validation: float = 0.0) -> ClientData:
    """All of a client's private data; tested on its test part or, without one, on a quarter."""
    samples = len(parts.train)
    if parts.test is None:
        train, test = train_test_split(samples, seed=seed, client_id=client_id)
        return _client_data(parts.train, train, parts.train, test, validation)
    if samples < FEWEST_TO_TRAIN:
        raise DataError(f"client {client_id} has {samples} training samples, it needs at least {FEWEST_TO_TRAIN}")
    # Shuffled as every shard is: a folder is sorted by class, and not every loader shuffles.
    train = shuffled(samples, seed=seed, client_id=client_id)
    return _client_data(parts.train, train, parts.test, np.arange(len(parts.test)), validation)


@cache_last
def _dirichlet(dataset: LabelledImages, clients: int, alpha: float, seed: int, least: int) -> tuple[Indices, ...]:
    return dirichlet_split(dataset.labels, clients=clients, alpha=alpha, seed=seed, least=least)


def _client_data(
    train: LabelledImages, train_rows: Indices, test: LabelledImages, test_rows: Indices, validation: float
) -> ClientData:
    held_out = held_out_samples(len(train_rows), validation)
    kept = len(train_rows) - held_out
    own_train = _split_of(train, train_rows[:kept])
    return ClientData(
        train=own_train,
        test=_split_of(test, test_rows),
        classes=len(train.class_names),
        class_names=train.class_names,
        validation=_split_of(train, train_rows[kept:]) if held_out else None,
        pixels=pixel_range(own_train.images),
    )


def _scaled(split: Split, size: int) -> Split:
    return Split(resized(split.images, size), split.labels)


def _split_of(data: LabelledImages, rows: Indices) -> Split:
    images = data.images.select(rows) if isinstance(data.images, FileRows) else data.images[rows]
    return Split(images, torch.from_numpy(data.labels[rows]))
