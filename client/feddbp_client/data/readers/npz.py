"""Image data in .npz files: raw pixels (x_*, y_*) or concatenated JPEG files (jpg_*, off_*, y_*).

The parts are called train and test; `classes`, the names of the labels, is optional. Pickling is always off.
"""

from __future__ import annotations

import zipfile
import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from feddbp_client.data.decoding import decode_all
from feddbp_client.data.images import DataError, ImageParts, LabelledImages, check_label_type, in_memory, labelled
from feddbp_client.data.readers.shared_files import replacing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt
    from numpy.lib.npyio import NpzFile

_SHOWN: Final = 8
"""Most arrays of a file that an error names."""
# Raised by numpy, zipfile and zlib for files that are truncated, overwritten, encrypted or malicious.
_DAMAGE = (
    ValueError,
    OSError,
    EOFError,
    RuntimeError,
    MemoryError,
    SyntaxError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_npz(
    path: Path,
    *,
    classes: int,
    class_names: Sequence[str] | None = None,
    default_names: Sequence[str] = (),
    with_test: bool = True,
) -> ImageParts:
    """Reads an npz file; with class_names, the labels of a file that names its classes are translated by name.

    default_names apply to a file without class names.
    """
    with _open(path) as file:
        own_names = _names(file, path)
        if own_names is not None and class_names is None and len(own_names) != classes:
            raise DataError(f"{path}: names {len(own_names)} classes, expected {classes}")
        names = tuple(class_names or own_names or default_names or map(str, range(classes)))
        if not _has(file, "train"):
            found = ", ".join(file.files[:_SHOWN]) or "no arrays"
            raise DataError(
                f"{path}: has neither x_train nor jpg_train, but {found}; a client "
                "needs x_train of shape [N, H, W] or [N, H, W, 1 or 3], and y_train of whole numbers"
            )
        train = _part(file, path, "train", own_names or names)
        test = None
        # Exports without a test part often write an empty one.
        if with_test and _has(file, "test") and _array(file, path, "y_test").size:
            test = _part(file, path, "test", own_names or names)
    if own_names is not None and own_names != names:
        train = _renamed(train, names, path)
        test = test and _renamed(test, names, path)
    if test is not None and test.images.shape[1:] != train.images.shape[1:]:
        raise DataError(f"{path}: training images are {train.images.shape[1:]}, test images {test.images.shape[1:]}")
    return ImageParts(train, test)


def class_names_in(path: Path) -> list[str]:
    """The names of the classes of a file; numbers up to the highest label, where it has no names."""
    with _open(path) as file:
        names = _names(file, path)
        if names is not None:
            return list(names)
        labels = [_labels(file, path, part) for part in ("train", "test") if _has(file, part)]
    return [str(number) for number in range(max((int(found.max()) + 1 for found in labels if found.size), default=0))]


def write_npz(path: Path, data: LabelledImages, *, source: str) -> None:
    """Writes an uncompressed npz for map_npz; source identifies what the data was made from."""
    with replacing(path) as handle:
        np.savez(
            handle,
            x_train=in_memory(data.images),
            y_train=data.labels,
            classes=np.array(data.class_names),
            source=np.array(source),
        )


def map_npz(path: Path, *, source: str) -> LabelledImages | None:
    """Maps a file of write_npz; None if it is damaged or was made from another source.

    The pixels are mapped, not read: client processes share one copy in the page cache, and each touches only the rows
    of its shard. The zip's checksum is not verified, so this is only for files that write_npz wrote.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            if str(file["source"]) != source:
                return None
            labels, names = file["y_train"], [str(name) for name in file["classes"]]
        return labelled(_mapped(path, "x_train.npy"), labels, names, origin=str(path))
    except (*_DAMAGE, KeyError, DataError):
        return None


def _mapped(path: Path, member: str) -> npt.NDArray[np.uint8]:
    with zipfile.ZipFile(path) as archive, path.open("rb") as handle:
        info = archive.getinfo(member)
        if info.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{member} is compressed")
        # A local header has 30 bytes; the last four are the lengths of the name and the extra field that follow.
        handle.seek(info.header_offset + 26)
        handle.seek(sum(np.frombuffer(handle.read(4), dtype="<u2").tolist()), 1)
        version = np.lib.format.read_magic(handle)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(handle)
        else:
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(handle)
        order = "F" if fortran else "C"
        return np.memmap(path, dtype=dtype, mode="r", offset=handle.tell(), shape=shape, order=order)  # type: ignore[call-overload, no-any-return]


def _open(path: Path) -> NpzFile:
    try:
        file = np.load(path, allow_pickle=False) if zipfile.is_zipfile(path) else None
    except _DAMAGE as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    if file is None:
        _check_readable(path)
        raise DataError(f"{path}: not an npz file, or truncated")
    return file  # type: ignore[no-any-return]


def _check_readable(path: Path) -> None:
    """Raises DataError for a file that cannot be opened, which `is_zipfile` takes for one of another format."""
    try:
        path.open("rb").close()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def _array(file: NpzFile, path: Path, key: str) -> npt.NDArray[Any]:
    if key not in file:
        raise DataError(f"{path}: has no {key}")
    try:
        return np.asarray(file[key])
    except _DAMAGE as error:
        raise DataError(f"{path}: {key} is damaged: {error}") from error


def _names(file: NpzFile, path: Path) -> tuple[str, ...] | None:
    if "classes" not in file:
        return None
    names = _array(file, path, "classes")
    if names.ndim != 1 or names.dtype.kind != "U":
        raise DataError(f"{path}: classes is {names.dtype} {names.shape}, expected a list of names")
    return tuple(str(name) for name in names)


def _has(file: NpzFile, part: str) -> bool:
    return f"x_{part}" in file or f"jpg_{part}" in file


def _part(file: NpzFile, path: Path, part: str, names: Sequence[str]) -> LabelledImages:
    labels = _array(file, path, f"y_{part}")
    images = _array(file, path, f"x_{part}") if f"x_{part}" in file else _jpegs(file, path, part, count=len(labels))
    return labelled(images, labels, names, origin=f"{path}: {part} part")


def _labels(file: NpzFile, path: Path, part: str) -> npt.NDArray[Any]:
    labels = _array(file, path, f"y_{part}")
    if labels.size:  # an empty test part often has another type
        check_label_type(labels, origin=f"{path}: {part} part")
    return labels


def _jpegs(file: NpzFile, path: Path, part: str, *, count: int) -> npt.NDArray[np.uint8]:
    stream, offsets = _array(file, path, f"jpg_{part}"), _array(file, path, f"off_{part}")
    if stream.dtype != np.uint8 or stream.ndim != 1:
        raise DataError(f"{path}: jpg_{part} is {stream.dtype} {stream.shape}, expected uint8 [bytes]")
    if not np.issubdtype(offsets.dtype, np.integer) or offsets.shape != (count + 1,):
        raise DataError(f"{path}: off_{part} is {offsets.dtype} {offsets.shape}, expected {count + 1} integers")
    if offsets[0] < 0 or offsets[-1] > len(stream) or (np.diff(offsets.astype(np.int64)) <= 0).any():
        raise DataError(f"{path}: off_{part} is not increasing within the {len(stream)} bytes of jpg_{part}")
    if not count:
        raise DataError(f"{path}: {part} part holds no images")
    return decode_all(
        count,
        lambda i: (stream[offsets[i] : offsets[i + 1]].tobytes(), f"{path}: image {i} of jpg_{part}"),
    )


def _renamed(part: LabelledImages, names: tuple[str, ...], path: Path) -> LabelledImages:
    numbers = {name: number for number, name in enumerate(names)}
    if len(numbers) != len(names) or len(set(part.class_names)) != len(part.class_names):
        raise DataError(f"{path}: class names repeat; labels cannot be matched by name")
    unknown = [name for name in part.class_names if name not in numbers]
    if unknown:
        raise DataError(f"{path}: class {unknown[0]!r} is not one of the run's classes")
    translation = np.array([numbers[name] for name in part.class_names], dtype=np.int64)
    return LabelledImages(part.images, translation[part.labels], names)
