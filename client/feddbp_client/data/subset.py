"""Subsets of public data sets: images of each class drawn by a seed, in an npz that clients read as that data set."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from feddbp_client.data.dataset_cache import clear_dataset_cache
from feddbp_client.data.datasets import load_dataset
from feddbp_client.data.images import DataError, LabelledImages, in_memory
from feddbp_client.data.readers.shared_files import exclusive, replacing
from feddbp_common.given_paths import is_there
from feddbp_common.seeding import derive_seed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def draw_subset(data: LabelledImages, *, per_class: int, seed: int) -> LabelledImages:
    """Draws at most per_class images of each class without replacement, in an order shuffled by the seed.

    A smaller subset is part of a larger one of the same seed. What is drawn of a class does not depend on the others.
    """
    if per_class < 1:
        raise DataError(f"{per_class} images of each class make no subset; draw at least one")
    drawn = []
    for label in range(len(data.class_names)):
        random = np.random.default_rng(derive_seed(seed, "subset", label))
        drawn.append(random.permutation(np.flatnonzero(data.labels == label))[:per_class])
    rows = np.random.default_rng(derive_seed(seed, "subset", "order")).permutation(np.concatenate(drawn))
    return LabelledImages(data.images[rows], data.labels[rows], data.class_names)


def save_subset(
    name: str, data_dir: Path, target: Path, *, per_class: int, seed: int, overwrite: bool = False
) -> LabelledImages:
    """Draws a subset of a public data set, which is read or downloaded as by a client, and writes it to target.

    Raises DataError if target is there already, unless it may be overwritten.
    """
    with _writing(target):
        _check_target(target, data_dir, overwrite=overwrite)
    subset = draw_subset(load_dataset(name, data_dir), per_class=per_class, seed=seed)
    with _writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(target):
            _check_target(target, data_dir, overwrite=overwrite)  # another process may have written it meanwhile
            _write(target, subset)
    clear_dataset_cache()  # what was loaded from target before
    return subset


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"{target}: cannot be written: {error.strerror or error}") from error


def _check_target(target: Path, data_dir: Path, *, overwrite: bool) -> None:
    if target.parent.resolve() == data_dir.expanduser().resolve():
        raise DataError(
            f"{target.parent}: is the --data-dir, where clients would read the subset in place of the whole data set; "
            "give another --out"
        )
    if is_there(target.parent) and not target.parent.is_dir():
        raise DataError(f"{target.parent}: not a directory")
    if not overwrite and is_there(target):
        raise DataError(f"{target}: exists already; give --overwrite to replace it, or another --out")


def _write(target: Path, data: LabelledImages) -> None:
    """Writes the same bytes for the same data: numpy gives all members of an npz the date 1980-01-01."""
    with replacing(target) as handle:
        np.savez_compressed(
            handle, x_train=in_memory(data.images), y_train=data.labels, classes=np.array(data.class_names)
        )
