"""The public data sets by name: their published files and readers."""

from __future__ import annotations

import logging
import re
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from feddbp_client.data.class_names import CIFAR10_CLASSES, CIFAR100_CLASSES, FLOWERS102_CLASSES
from feddbp_client.data.dataset_cache import cache_last
from feddbp_client.data.images import DataError, DownloadError
from feddbp_client.data.readers.cifar import read_cifar10, read_cifar100
from feddbp_client.data.readers.digits import read_digits
from feddbp_client.data.readers.download import download as fetch
from feddbp_client.data.readers.download import verify
from feddbp_client.data.readers.flowers import read_flowers102
from feddbp_client.data.readers.npz import map_npz, read_npz, write_npz
from feddbp_client.data.readers.shared_files import exclusive
from feddbp_client.data.readers.tiny_imagenet import read_tiny_imagenet
from feddbp_common.config.catalog import DATASETS, DatasetInfo
from feddbp_common.given_paths import is_there

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from feddbp_client.data.images import LabelledImages

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PublishedFile:
    url: str
    digest: str
    size: int

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True)
class Source:
    read: Callable[..., LabelledImages]
    """Called with the paths of the published files, in their order."""
    files: tuple[PublishedFile, ...] = ()
    """Empty for data that comes with a package."""
    npz_stems: tuple[str, ...] = ()
    """Prefixes of the name of an npz with this data."""
    npz_with_test: bool = True
    """Whether the protocol pools the test part of an npz with its training part."""
    class_names: tuple[str, ...] = ()
    """Class names for an npz without them."""


_TORONTO = "https://www.cs.toronto.edu/~kriz"
_OXFORD = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102"
_STANFORD = "https://cs231n.stanford.edu"

# A new data set needs its facts in the catalogue, a reader, and an entry here.
SOURCES: Final[Mapping[str, Source]] = MappingProxyType(
    {
        "digits": Source(read=read_digits, npz_stems=("digits",)),
        "cifar10": Source(
            read=read_cifar10,
            files=(
                PublishedFile(
                    url=f"{_TORONTO}/cifar-10-python.tar.gz",
                    digest="sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
                    size=170_498_071,
                ),
            ),
            npz_stems=("cifar10", "cifar-10"),
            class_names=CIFAR10_CLASSES,
        ),
        "cifar100": Source(
            read=read_cifar100,
            files=(
                PublishedFile(
                    url=f"{_TORONTO}/cifar-100-python.tar.gz",
                    digest="sha256:85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
                    size=169_001_437,
                ),
            ),
            npz_stems=("cifar100", "cifar-100"),
            class_names=CIFAR100_CLASSES,
        ),
        "flowers102": Source(
            read=read_flowers102,
            files=(
                PublishedFile(
                    url=f"{_OXFORD}/102flowers.tgz",
                    digest="sha256:2d01ecc807db462958cfe3d92f57a8c252b4abd240eb955770201e45f783b246",
                    size=344_862_509,
                ),
                PublishedFile(
                    url=f"{_OXFORD}/imagelabels.mat",
                    digest="sha256:4903e94206bac23bf772aadf06451916df56b58fc483a62db32a97b82656651d",
                    size=502,
                ),
                PublishedFile(
                    url=f"{_OXFORD}/setid.mat",
                    digest="sha256:46b8678f91fd95d3c8f4feab80d271a6c834a1dd896fe29fd3e6ad9ce5c8dccd",
                    size=14_989,
                ),
            ),
            npz_stems=("flowers102", "flowers-102"),
            class_names=FLOWERS102_CLASSES,
        ),
        "tiny-imagenet": Source(
            read=read_tiny_imagenet,
            files=(
                PublishedFile(
                    url=f"{_STANFORD}/tiny-imagenet-200.zip",
                    digest="sha256:6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
                    size=248_100_043,
                ),
            ),
            npz_stems=("tiny-imagenet", "tiny-imagenet-200", "tinyimagenet", "tinyimagenet200"),
            # The published test part has no labels; an npz's is the validation part, which is not used.
            npz_with_test=False,
        ),
    }
)


def load_dataset(name: str, data_dir: Path, *, download: bool = True) -> LabelledImages:
    """All samples the protocol uses, in the same order for every client.

    Read from an npz in data_dir whose name begins with the data set's, else from the published archive in data_dir,
    else the archive is downloaded first. Decoded archives are cached beside them in a hidden npz. Data that comes with
    a package needs no archive.
    """
    if name not in SOURCES:
        raise DataError(f"no data set is called {name!r}; known are {', '.join(SOURCES)}")
    return _load(name, data_dir.expanduser().resolve(), download)


@cache_last
def _load(name: str, data_dir: Path, download: bool) -> LabelledImages:
    source, info = SOURCES[name], DATASETS[name]
    npz = _find_npz(name, source, data_dir)
    if npz is not None:
        data = read_npz(
            npz, classes=info.classes, default_names=source.class_names, with_test=source.npz_with_test
        ).pooled()
        _check(data, info, npz)
        return data
    return _decoded(name, source, info, data_dir, download) if source.files else source.read()


def _find_npz(name: str, source: Source, data_dir: Path) -> Path | None:
    # The prefix must end there: cifar100_small.npz is not a file of cifar10.
    begins = re.compile(rf"(?:{'|'.join(map(re.escape, source.npz_stems))})(?![a-z0-9])", re.IGNORECASE)
    try:
        found = [path for path in sorted(data_dir.glob("*.npz")) if begins.match(path.stem)]
    except OSError as error:
        raise DataError(f"{data_dir}: cannot be read: {error.strerror}") from error
    exact = [path for path in found if path.stem == name]
    if len(found) > 1 and not exact:
        # If clients picked different files, their shards would overlap.
        names = ", ".join(path.name for path in found)
        raise DataError(f"{data_dir}: several files could be {name}: {names}; keep one, or call one {name}.npz")
    return next(iter(exact or found), None)


def _decoded(name: str, source: Source, info: DatasetInfo, data_dir: Path, download: bool) -> LabelledImages:
    cache = data_dir / f".{name}.npz"
    made_from = " ".join(file.digest for file in source.files)
    with ExitStack() as stack:
        try:
            if download and not data_dir.exists():
                data_dir.mkdir(parents=True, exist_ok=True)
                _log.warning("%s did not exist: it was made, to download %s to it", data_dir, info.title)
            # One process decodes, the others wait and map its result.
            stack.enter_context(exclusive(cache))
            writable = True
        except OSError:
            writable = False  # a read-only or missing folder: there is nothing to lock and no place for a cache
        kept = map_npz(cache, source=made_from)
        if kept is not None:
            return kept
        paths = [_published(name, file, data_dir, download) for file in source.files]
        _log.info("reading %s from %s", info.title, data_dir)
        data = source.read(*paths)
        _check(data, info, paths[0])
        if not writable:
            return data
        try:
            write_npz(cache, data, source=made_from)
        except OSError as error:
            _log.warning("cannot write the cache %s, the archive will be decoded again next time: %s", cache, error)
        # The map replaces the array, whose memory is freed.
        return map_npz(cache, source=made_from) or data


def _published(name: str, file: PublishedFile, data_dir: Path, download: bool) -> Path:
    path = data_dir / file.name
    if is_there(path):
        verify(path, file.digest)
        return path
    npz = f"{SOURCES[name].npz_stems[0]}*.npz"
    if not download:
        raise DataError(f"{data_dir}: has neither {file.name} nor {npz}, and downloading is off")
    try:
        fetch(file.url, path, digest=file.digest, size=file.size)
    except DataError as error:
        raise DownloadError(f"{error} (or put {file.name} or {npz} into {data_dir} yourself)") from error
    return path


def _check(data: LabelledImages, info: DatasetInfo, path: Path) -> None:
    expected = (info.image_size, info.image_size, info.channels)
    if data.images.shape[1:] != expected:
        raise DataError(f"{path}: images are {data.images.shape[1:]}, those of {info.title} are {expected}")
    if len(data.class_names) != info.classes:
        raise DataError(f"{path}: has {len(data.class_names)} classes, {info.title} has {info.classes}")
