"""CIFAR-10 and CIFAR-100 from their published tar files."""

from __future__ import annotations

import io
import pickle
import re
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from feddbp_client.data.images import DataError, LabelledImages, labelled
from feddbp_client.data.readers.archives import tar_members

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

_SIDE = 32


def read_cifar10(archive: Path) -> LabelledImages:
    batches = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    return _read(archive, "cifar-10-batches-py", batches, "labels", meta=("batches.meta", "label_names"))


def read_cifar100(archive: Path) -> LabelledImages:
    return _read(archive, "cifar-100-python", ["train", "test"], "fine_labels", meta=("meta", "fine_label_names"))


def _read(archive: Path, folder: str, batches: list[str], label_key: str, *, meta: tuple[str, str]) -> LabelledImages:
    meta_file, names_key = meta
    names = [f"{folder}/{file}" for file in (*batches, meta_file)]
    wanted = re.compile("|".join(map(re.escape, names)))
    contents = {name: _unpickled(content, archive, name) for name, content in tar_members(archive, wanted)}
    missing = [name for name in names if name not in contents]
    if missing:
        raise DataError(f"{archive}: has no {missing[0]}")
    *parts, described = (contents[name] for name in names)
    try:
        images = np.concatenate([_pixels(part["data"]) for part in parts])
        labels = np.concatenate([np.asarray(part[label_key], dtype=np.int64) for part in parts])
        class_names = [str(name) for name in described[names_key]]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{archive}: not in the published format of CIFAR: {error!r}") from error
    return labelled(images, labels, class_names, origin=str(archive))


def _pixels(stored: Any) -> npt.NDArray[np.uint8]:
    """A row is the red, then the green, then the blue plane."""
    if not isinstance(stored, _StoredArray):
        raise TypeError("data is not an array")
    return stored.bytes().reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)


class _StoredArray:
    """Replaces a pickled numpy array: stores its state and does nothing with it.

    numpy's own classes would not be safe: their __setstate__ trusts the dtype in a pickle, and an object array made of
    raw bytes can run code.
    """

    def __init__(self, *_: object) -> None:
        self._state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._state = state

    def bytes(self) -> npt.NDArray[np.uint8]:
        _version, shape, dtype, fortran, content = self._state
        if not isinstance(dtype, _StoredDtype) or dtype.code not in ("u1", "|u1") or fortran:
            raise ValueError("data is not an ordinary array of bytes")
        # Python 2 wrote its byte strings, read here as Latin-1 text, which keeps every byte.
        raw = content.encode("latin-1") if isinstance(content, str) else bytes(content)
        return np.frombuffer(raw, dtype=np.uint8).reshape(shape)


class _StoredDtype:
    """Replaces a pickled numpy dtype."""

    def __init__(self, code: object = None, *_: object) -> None:
        self.code = code

    def __setstate__(self, _state: object) -> None:
        pass


class _DataOnlyUnpickler(pickle.Unpickler):
    """Loads lists, dicts, text, numbers and replacements for arrays; refuses any other class.

    The replacements have no attribute that a pickle could exploit, and no module is ever imported for one.
    """

    _REPLACEMENTS: ClassVar[dict[tuple[str, str], type]] = {
        ("numpy.core.multiarray", "_reconstruct"): _StoredArray,
        ("numpy._core.multiarray", "_reconstruct"): _StoredArray,
        ("numpy", "ndarray"): _StoredArray,
        ("numpy", "dtype"): _StoredDtype,
    }

    def find_class(self, module: str, name: str) -> type:
        try:
            return self._REPLACEMENTS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}") from None


def _unpickled(content: bytes, archive: Path, name: str) -> dict[str, Any]:
    try:
        value = _DataOnlyUnpickler(io.BytesIO(content), encoding="latin-1").load()
    except Exception as error:  # the pickle module documents that damaged input may raise anything
        raise DataError(f"{archive}: {name} is refused: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{archive}: {name} is refused: it is not a dict")
    return value
