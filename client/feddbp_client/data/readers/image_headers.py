"""Reads the headers of image files: their sizes and pixel types, and whether they are images at all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from feddbp_client.data.decoding import FLOAT32, UINT8, UINT16, read_header
from feddbp_client.data.file_rows import decoding_threads
from feddbp_client.data.images import DataError, UnreadableImageError
from feddbp_client.data.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from feddbp_client.data.file_rows import ImageFiles

_CHUNK: Final = 128
"""Files per call: a header takes 20 microseconds, less than handing over a single call."""


@dataclass(frozen=True, eq=False)
class ImageHeaders:
    """What the headers of some files say, by row of the listing."""

    files: ImageFiles
    sizes: npt.NDArray[np.int32]
    """Width and height, [N, 2]."""
    depths: list[np.dtype[Any]]
    reduced: int
    """Files with 16 bits per colour channel, of which Pillow reads 8."""
    unreadable: dict[int, str]
    """By row, why it is not an image."""

    def readable(self) -> ImageHeaders:
        """Those of the files that are images."""
        kept = [row for row in range(len(self.files)) if row not in self.unreadable]
        files, depths = self.files.without(self.unreadable), [self.depths[row] for row in kept]
        return replace(self, files=files, sizes=self.sizes[kept], depths=depths, unreadable={})


def read_headers(files: ImageFiles) -> ImageHeaders:
    """Reads the header of every file, in the decoding threads."""
    progress = Progress("checked", len(files), "files")
    sizes = np.zeros((len(files), 2), dtype=np.int32)
    depths: list[np.dtype[Any]] = [UINT8] * len(files)
    unreadable: dict[int, str] = {}

    def read(rows: range) -> int:
        reduced = 0
        for row in rows:
            path = files.path(row)
            try:
                sizes[row], depths[row], cut = read_header(path, origin=path)
            except UnreadableImageError as error:
                unreadable[row] = error.reason
            else:
                reduced += cut
        progress.advance(len(rows))
        return reduced

    chunks = [range(start, min(start + _CHUNK, len(files))) for start in range(0, len(files), _CHUNK)]
    reduced = sum(decoding_threads().map(read, chunks))
    return ImageHeaders(files, sizes, depths, reduced, dict(sorted(unreadable.items())))


def common_type(parts: Sequence[ImageHeaders]) -> np.dtype[Any]:
    """The pixel type that holds all images: the deeper of 8 and 16 bits; floats only among themselves."""
    example = {depth: headers.files.path(row) for headers in parts for row, depth in enumerate(headers.depths)}
    if FLOAT32 in example and len(example) > 1:
        other = UINT16 if UINT16 in example else UINT8
        raise DataError(
            f"{example[FLOAT32]}: has float pixels, {example[other]} {other}: they have no common scale; "
            "convert either, or give them to different clients"
        )
    return next(depth for depth in (FLOAT32, UINT16, UINT8) if depth in example)
