"""Checks private data without a server: what a client would read, how it would split it, and what is wrong with it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from feddbp_client.data.dataset_cache import clear_dataset_cache
from feddbp_client.data.images import DataError, ImageParts
from feddbp_client.data.private import is_folder, load_private_data
from feddbp_client.data.readers.image_folder import LISTS_SKIPPED, class_folders, without_folders
from feddbp_client.data.readers.npz import class_names_in
from feddbp_client.data.shard import ClientData, Split, private_shard

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class ClassCounts:
    """Images of one class, as a client would split them."""

    name: str
    train: int
    validation: int
    test: int


@dataclass(frozen=True, kw_only=True)
class DataReport:
    """What a client would read from a path."""

    classes: list[ClassCounts]
    image_shape: tuple[int, int, int]
    """(channels, height, width)."""
    pixels: str
    decoded_bytes: int
    is_in_memory: bool
    """Otherwise images are decoded when they are read, and cached on disk."""
    has_test_part: bool
    notes: list[str]
    """What the client would log: scaled images, empty folders."""
    unreadable: list[str]
    """Files that are not readable images, each with the reason; a client refuses them without --skip-unreadable."""

    @property
    def warnings(self) -> list[str]:
        """What a client accepts, and its owner may not have meant."""
        without = {
            "training": [counts.name for counts in self.classes if not counts.train and counts.test],
            "test": [counts.name for counts in self.classes if counts.train and not counts.test],
        }
        return [f"no {kind} images of {', '.join(names)}" for kind, names in without.items() if names]


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """The settings of a run that decide what a client reads."""

    classes: int | None = None
    class_names: tuple[str, ...] = ()
    image_size: int | None = None
    validation: float = 0.0
    seed: int = 0
    client_id: int = 0


def check_data(path: Path, options: CheckOptions) -> DataReport:
    """Decodes every image once. Raises DataError for data that no client can use."""
    names = options.class_names or None
    classes = len(names) if names else options.classes or len(_names_in(path))
    with _logged_by_readers() as notes:
        clear_dataset_cache()
        parts = load_private_data(
            path, classes=classes, class_names=names, image_size=options.image_size, skip_unreadable=True
        )
        data = private_shard(parts, seed=options.seed, client_id=options.client_id, validation=options.validation)
    return _report(parts, data, notes)


def _names_in(path: Path) -> list[str]:
    found = path.expanduser()
    if is_folder(found):
        names = class_folders(found)
        if not names:
            raise without_folders(path)
        return names
    if found.suffix != ".npz":
        raise DataError(f"{path}: neither a folder of images nor an .npz file")
    return class_names_in(found)


def _report(parts: ImageParts, data: ClientData, notes: list[str]) -> DataReport:
    stored = [parts.train.images] + ([] if parts.test is None else [parts.test.images])
    counts = [data.label_counts, _counts(data.validation, data.classes), _counts(data.test, data.classes)]
    return DataReport(
        classes=[
            ClassCounts(name=name, train=int(train), validation=int(validation), test=int(test))
            for name, train, validation, test in zip(data.class_names, *counts, strict=True)
        ],
        image_shape=data.image_shape,
        pixels=str(data.pixels),
        decoded_bytes=sum(int(np.prod(rows.shape, dtype=np.int64)) * rows.dtype.itemsize for rows in stored),
        is_in_memory=all(isinstance(rows, np.ndarray) for rows in stored),
        has_test_part=parts.test is not None,
        notes=notes,
        unreadable=list(parts.skipped),
    )


def _counts(split: Split | None, classes: int) -> npt.NDArray[np.int64]:
    if split is None:
        return np.zeros(classes, dtype=np.int64)
    return np.bincount(split.labels.numpy(), minlength=classes).astype(np.int64)


@contextmanager
def _logged_by_readers() -> Iterator[list[str]]:
    """Collects what the readers log instead of printing it, but for the skipped files, which a report lists itself."""
    lines: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if not hasattr(record, LISTS_SKIPPED):
                lines.append(record.getMessage())

    logger: Any = logging.getLogger("feddbp_client.data")
    collector, before = Collector(), (logger.level, logger.propagate)
    logger.addHandler(collector)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield lines
    finally:
        logger.removeHandler(collector)
        logger.level, logger.propagate = before
