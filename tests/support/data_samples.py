"""Small files in the formats the client reads, generated for a test."""

from __future__ import annotations

import hashlib
import io
import pickle
import struct
import tarfile
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


def md5(content: bytes) -> str:
    return f"md5:{hashlib.md5(content).hexdigest()}"


def pixels(count: int, side: int = 8, channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, channels), dtype=np.uint8)


def encoded(image: np.ndarray, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(image).save(out, kind)
    return out.getvalue()


def flat(color: tuple[int, int, int], width: int = 8, height: int = 8) -> np.ndarray:
    return np.full((height, width, 3), color, dtype=np.uint8)


def write_image(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(image))


def deep_colour_png(level: int, side: int = 8) -> bytes:
    """A PNG with 16 bits per colour channel, which Pillow does not write."""
    rows = (b"\0" + struct.pack(">H", level) * (3 * side)) * side
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", side, side, 16, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    ]
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def jpeg_keys(images: Sequence[bytes], part: str) -> dict[str, np.ndarray]:
    offsets = np.cumsum([0, *map(len, images)])
    return {f"jpg_{part}": np.frombuffer(b"".join(images), dtype=np.uint8), f"off_{part}": offsets}


def tar_gz(members: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def zipped(members: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


class _Python2Pickler(pickle._Pickler):
    """Writes byte strings as Python 2 did, which is what the CIFAR archives hold."""

    # what the standard library's stubs leave out
    write: Callable[[bytes], object]
    memoize: Callable[[object], None]

    dispatch: ClassVar[dict[type, Callable[[Any, Any], None]]] = dict(pickle._Pickler.dispatch)

    def save_byte_string(self, value: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)
        self.memoize(value)

    dispatch[bytes] = save_byte_string


def python2_pickle(value: Any) -> bytes:
    out = io.BytesIO()
    _Python2Pickler(out, protocol=2).dump(value)
    return out.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def cifar_rows(images: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(len(images), -1)


def cifar10_members(images: np.ndarray, labels: Sequence[int]) -> dict[str, bytes]:
    """Twelve images: two in each of the five training files and two in the test file."""
    files = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    members = {
        f"cifar-10-batches-py/{file}": python2_pickle(
            {b"data": cifar_rows(images[2 * i : 2 * i + 2]), b"labels": list(labels[2 * i : 2 * i + 2])}
        )
        for i, file in enumerate(files)
    }
    names = [f"kind{number}".encode() for number in range(10)]
    members["cifar-10-batches-py/batches.meta"] = python2_pickle({b"label_names": names})
    return members


def cifar100_members(images: np.ndarray, labels: Sequence[int], cut: int) -> dict[str, bytes]:
    def batch(rows: slice) -> bytes:
        table = {b"data": cifar_rows(images[rows]), b"fine_labels": list(labels[rows]), b"coarse_labels": [0]}
        return python2_pickle(table)

    names = [f"kind{number}".encode() for number in range(100)]
    return {
        "cifar-100-python/meta": python2_pickle({b"fine_label_names": names, b"coarse_label_names": [b"any"]}),
        "cifar-100-python/test": batch(slice(cut, None)),
        "cifar-100-python/train": batch(slice(None, cut)),
    }


def tiny_imagenet_members(classes: int = 200) -> dict[str, bytes]:
    """One flat grey image a class, its grey the class number; wnids fall while words rise, so that mix-ups show."""
    members = {"tiny-imagenet-200/words.txt": b"", "tiny-imagenet-200/val/images/val_0.JPEG": b"not looked at"}
    words = []
    for number in reversed(range(classes)):
        wnid = f"n{number:08d}"
        members[f"tiny-imagenet-200/train/{wnid}/{wnid}_boxes.txt"] = b"not looked at"
        grey = np.full((64, 64), number, dtype=np.uint8)
        members[f"tiny-imagenet-200/train/{wnid}/images/{wnid}_0.JPEG"] = encoded(grey, "JPEG")
        words.append(f"{wnid}\tthing {number}, stuff")
    members["tiny-imagenet-200/words.txt"] = "\n".join(words).encode()
    return members
