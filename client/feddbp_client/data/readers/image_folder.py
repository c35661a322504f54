"""Images in folders, one per class: ROOT/CLASS, or ROOT/train/CLASS and ROOT/test/CLASS."""

from __future__ import annotations

import logging
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from feddbp_client.data.decoding import FLOAT32, UINT8, UINT16, scaling_note
from feddbp_client.data.file_rows import FileRows, ImageFiles
from feddbp_client.data.images import DataError, ImageParts, LabelledImages
from feddbp_client.data.progress import Progress
from feddbp_client.data.readers.image_headers import ImageHeaders, common_type, read_headers
from feddbp_common.humanize import human_bytes
from feddbp_common.image_names import is_image_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from feddbp_client.data.images import ImageRows
    from feddbp_client.data.row_cache import CacheSpace

_log = logging.getLogger(__name__)

LARGEST_DEFAULT_SIDE: Final = 64
"""The largest size of the public data sets; larger only on request, since cost grows with the square."""
LARGEST_IN_MEMORY: Final = 256_000_000
"""Bytes up to which decoded images are read into memory at once."""

_SHOWN: Final = 20
"""Unreadable files that a message names."""
LISTS_SKIPPED: Final = "lists_skipped"
"""Attribute of the log record that names the files in `ImageParts.skipped`."""


def read_folder(
    path: Path,
    *,
    classes: int,
    class_names: Sequence[str] | None,
    image_size: int | None,
    space: CacheSpace | None = None,
    skip_unreadable: bool = False,
) -> ImageParts:
    """All images as RGB squares of one size and pixel type, aspect not kept.

    The size is image_size, or else the short side of the first training image, but at most LARGEST_DEFAULT_SIDE. Files
    that are not images are ignored; sub-folders of a class belong to it. Images of more than LARGEST_IN_MEMORY are
    decoded when they are read, and cached in the given space; only with skip_unreadable are they all decoded before.
    """
    train_root, test_root = _roots(path)
    train, test = _listed(train_root), None if test_root is None else _listed(test_root)
    if not train.by_class:
        raise without_folders(train_root)
    numbers = _numbers(path, {*train.by_class, *(test.by_class if test else ())}, classes, class_names)
    if not len(train.files):
        raise DataError(f"{train_root}: holds no images in class folders")
    listed = [part for part in (train, test) if part and len(part.files)]
    checked = [read_headers(part.files) for part in listed]
    unreadable = [line for found in checked for line in _lines(found.files, found.unreadable)]
    parts = [part.without(found.unreadable) for part, found in zip(listed, checked, strict=True)]
    if not len(parts[0].files):
        raise _unreadable_error(path, unreadable, sum(len(part.files) for part in listed))
    headers = [found.readable() for found in checked]
    side = image_size or min(int(headers[0].sizes[0].min()), LARGEST_DEFAULT_SIDE)
    dtype = common_type(headers)
    _log_conversion(path, headers, side, dtype, chosen=image_size is not None)
    images, damaged = _images([part.files for part in parts], side, dtype, space, decode_now=skip_unreadable)
    unreadable += [line for part, rows in zip(parts, damaged, strict=True) for line in _lines(part.files, rows)]
    if unreadable and not skip_unreadable:
        raise _unreadable_error(path, unreadable, sum(len(part.files) for part in listed))
    if unreadable:
        said = (path, len(unreadable), _some(unreadable))
        _log.warning("%s: %d files are left out: %s", *said, extra={LISTS_SKIPPED: True})
    read = [
        LabelledImages(rows, part.without(bad).labels(numbers), tuple(numbers))
        for rows, part, bad in zip(images, parts, damaged, strict=True)
    ]
    if not len(read[0]):
        raise _unreadable_error(path, unreadable, sum(len(part.files) for part in listed))
    test_part = read[1] if len(read) > 1 and len(read[1]) else None
    return ImageParts(read[0], test_part, skipped=tuple(unreadable))


def without_folders(path: Path) -> DataError:
    return DataError(f"{path}: has no folders; put the images of each class into a folder of its name")


def class_folders(path: Path) -> list[str]:
    """The names of the classes in a folder, sorted."""
    roots = [root for root in _roots(path) if root is not None]
    return sorted({folder.name for root in roots for folder in _folders(root)})


def _lines(files: ImageFiles, unreadable: Mapping[int, str]) -> list[str]:
    return [f"{files.names[row]} ({reason})" for row, reason in sorted(unreadable.items())]


def _some(lines: Sequence[str]) -> str:
    more = f" and {len(lines) - _SHOWN:,} more" if len(lines) > _SHOWN else ""
    return ", ".join(lines[:_SHOWN]) + more


def _unreadable_error(path: Path, lines: Sequence[str], total: int) -> DataError:
    remedy = "replace or remove them, or give --skip-unreadable"
    if len(lines) > _SHOWN:
        remedy = f"`feddbp data check {path}` lists all; {remedy}"
    return DataError(f"{path}: {len(lines):,} of {total:,} files are not readable images: {_some(lines)}; {remedy}")


@dataclass(frozen=True, eq=False)
class _Listing:
    """The image files of a part, sorted by class and path."""

    files: ImageFiles
    by_class: dict[str, int]
    """The number of files in each class folder."""

    def without(self, rows: Collection[int]) -> _Listing:
        if not rows:
            return self
        starts = np.cumsum([0, *self.by_class.values()])
        by_class = {
            name: count - sum(start <= row < start + count for row in rows)
            for (name, count), start in zip(self.by_class.items(), starts, strict=False)
        }
        return _Listing(self.files.without(rows), by_class)

    def labels(self, numbers: dict[str, int]) -> np.ndarray[Any, np.dtype[np.int64]]:
        of_class = np.array([numbers[name] for name in self.by_class], dtype=np.int64)
        return np.repeat(of_class, list(self.by_class.values()))


def _roots(path: Path) -> tuple[Path, Path | None]:
    folders = {folder.name: folder for folder in _folders(path)}
    # A folder `train` with images in it is a class: of locomotives, say.
    if "train" not in folders or not _folders(folders["train"]):
        return path, None
    others = sorted(folders.keys() - {"train", "test"})
    if others:
        raise DataError(f"{folders[others[0]]}: neither train nor test; expected no other folder beside them")
    return folders["train"], folders.get("test")


def _folders(path: Path) -> list[Path]:
    try:
        found = [entry for entry in path.iterdir() if entry.is_dir()]
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    return sorted(folder for folder in found if not folder.name.startswith((".", "__")))


def _listed(root: Path) -> _Listing:
    names, statuses, by_class = [], [], {}
    progress = Progress("found", noun="images")
    for folder in _folders(root):
        found = sorted(_files(root, folder.name, progress))
        # Allowed: without that class, its owner keeps the numbering of the others this way.
        if not found:
            _log.warning("%s holds no images", folder)
        by_class[folder.name] = len(found)
        names += ["/".join(parts) for parts, _ in found]
        statuses += [(status.st_size, status.st_mtime_ns) for _, status in found]
    table = np.array(statuses, dtype=np.int64).reshape(-1, 2)
    return _Listing(ImageFiles(root=root, names=names, sizes=table[:, 0].copy(), changed=table[:, 1].copy()), by_class)


def _files(root: Path, name: str, progress: Progress) -> Iterator[tuple[tuple[str, ...], os.stat_result]]:
    """The parts of each image's path below the root, in whose order files are sorted, and its status."""
    for folder, _, files in os.walk(root / name, onerror=_refuse_folder):
        parts = Path(folder).relative_to(root).parts
        for file in map(Path, files):
            if is_image_name(file):
                status = _status(Path(folder, file))
                if status is not None:
                    progress.advance()
                    yield (*parts, file.name), status


def _refuse_folder(error: OSError) -> NoReturn:
    """Without it a folder of another user counts as one without images."""
    raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error


def _status(path: Path) -> os.stat_result | None:
    try:
        status = path.stat()
    except FileNotFoundError:  # a link to nothing
        return None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    return status if stat.S_ISREG(status.st_mode) else None


def _numbers(path: Path, folders: set[str], classes: int, class_names: Sequence[str] | None) -> dict[str, int]:
    if class_names is not None:
        unknown = sorted(folders - set(class_names))
        if unknown:
            classes_of_run = ", ".join(class_names)
            raise DataError(f"{path}: folder {unknown[0]!r} is not one of the run's classes: {classes_of_run}")
    elif len(folders) != classes:
        raise DataError(f"{path}: has {len(folders)} class folders, the run has {classes} classes")
    return {name: number for number, name in enumerate(class_names or sorted(folders))}


def _log_conversion(path: Path, headers: list[ImageHeaders], side: int, dtype: np.dtype[Any], *, chosen: bool) -> None:
    """Says what becomes of the images' sizes and pixels: nothing is scaled or cut in silence."""
    sizes = np.concatenate([found.sizes for found in headers])
    if (sizes != side).any():
        _log.info("%s: %s", path, scaling_note(sizes, side, chosen=chosen))
    of_8_bits = sum(found.depths.count(UINT8) for found in headers)
    if dtype == UINT16 and of_8_bits:
        _log.info(
            "%s: %s of %s images have 8 bits, the others 16; all are read as 16",
            path,
            f"{of_8_bits:,}",
            f"{len(sizes):,}",
        )
    reduced = sum(found.reduced for found in headers)
    if reduced:
        _log.warning(
            "%s: %s of %s images have 16 bits per colour channel, of which 8 are read; an npz keeps all",
            path,
            f"{reduced:,}",
            f"{len(sizes):,}",
        )


def _images(
    parts: list[ImageFiles], side: int, dtype: np.dtype[Any], space: CacheSpace | None, *, decode_now: bool
) -> tuple[Sequence[ImageRows], list[dict[int, str]]]:
    """The images of each part, and by row, which of them could not be decoded, as far as that is known yet."""
    nbytes = sum(map(len, parts)) * side * side * 3 * dtype.itemsize
    if nbytes <= LARGEST_IN_MEMORY:
        decoded = [FileRows(files, side=side, dtype=dtype).in_memory() for files in parts]
        return [np.delete(rows, list(bad), axis=0) if bad else rows for rows, bad in decoded], [
            bad for _, bad in decoded
        ]
    lazy = [FileRows(files, side=side, dtype=dtype, space=space) for files in parts]
    _log_cache(lazy, nbytes, space)
    # the range of floats is known only when all are decoded
    found = [rows.unreadable() if decode_now or dtype == FLOAT32 else {} for rows in lazy]
    kept = [_without(rows, bad, space) if bad else rows for rows, bad in zip(lazy, found, strict=True)]
    return kept, found


def _without(rows: FileRows, bad: Collection[int], space: CacheSpace | None) -> FileRows:
    kept = FileRows(rows.files.without(bad), side=rows.shape[1], dtype=rows.dtype, space=space)
    if rows.dtype == FLOAT32:
        kept.unreadable()
    return kept


def _log_cache(lazy: list[FileRows], nbytes: int, space: CacheSpace | None) -> None:
    room = sum(rows.cache.capacity for rows in lazy if rows.cache is not None)
    images = sum(map(len, lazy))
    if space is not None and room == images:
        _log.info("decoded images, %s, are cached in %s", human_bytes(nbytes), space.directory)
    else:
        _log.warning(
            "decoded images take %s, and the cache has room for %s of %s; the others are decoded in every epoch: give "
            "a larger --data-cache-size, or a --data-cache on another disk",
            human_bytes(nbytes),
            f"{room:,}",
            f"{images:,}",
        )
