"""Files that claim to be pictures: only the named formats are decoded, and only so many pixels."""

from __future__ import annotations

import io
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from PIL import Image

from feddbp_client.data.decoding import MAX_PIXELS, decode, fitted, read_header, resized
from feddbp_client.data.images import DataError

READERS: dict[str, Callable[[Path], object]] = {
    "decode": lambda path: decode(path, origin=path.name),
    "decode scaled": lambda path: decode(path, origin=path.name, size=32),
    "decode deep": lambda path: decode(path, origin=path.name, dtype=np.dtype(np.uint16)),
    "decode bytes": lambda path: decode(path.read_bytes(), origin=path.name),
    "fitted": lambda path: fitted(path, (3, 8, 8), origin=path.name),
    "read_header": lambda path: read_header(str(path), origin=path.name),
}
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"


def bomb(width: int, height: int) -> bytes:
    """A PNG that declares many pixels; those it holds are compressed to nearly nothing."""
    packed = zlib.compress(bytes(1_000_000))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


@pytest.fixture
def no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **_: object) -> NoReturn:
        raise AssertionError(f"a picture started a program: {arguments}")

    monkeypatch.setattr(subprocess, "Popen", refuse)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("content", [EPS, b"%PDF-1.4\n", b"P3\xff", b"", b"\x00\x00\x01\x00"], ids=repr)
def test_a_file_of_another_format_is_refused_whatever_its_name(
    reader: str, content: bytes, tmp_path: Path, no_programs: None
) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"cat\.png: not a readable image"):
        READERS[reader](path)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("size", [(9_000, 9_000), (100_000, 100_000), (2**31 - 1, 2)], ids=str)
def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded(
    reader: str, size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise AssertionError("the picture was decoded")

    monkeypatch.setattr(Image.Image, "load", refuse)
    path = tmp_path / "bomb.png"
    path.write_bytes(bomb(*size))
    assert path.stat().st_size < 5_000
    with pytest.raises(DataError, match=r"bomb\.png: not a readable image: .*pixels"):
        READERS[reader](path)


def test_the_largest_picture_passes_the_check(tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    path.write_bytes(bomb(MAX_PIXELS // 64, 64))
    assert read_header(str(path), origin="large.png")[0] == (MAX_PIXELS // 64, 64)


def test_images_are_not_scaled_beyond_the_memory_of_the_machine() -> None:
    small = np.zeros((1_000_000, 1, 1, 3), dtype=np.uint8)
    with pytest.raises(DataError, match=r"1,000,000 images scaled to 1024x1024 take 3145\.7 GB, and this machine has"):
        resized(small, 1024)


@pytest.mark.parametrize("kind", ["BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP", "MPO"])
def test_every_named_format_is_read(kind: str) -> None:
    file = io.BytesIO()
    Image.new("RGB", (4, 3), (255, 255, 255)).save(file, kind)
    assert decode(file.getvalue(), origin=kind).shape == (3, 4, 3)
