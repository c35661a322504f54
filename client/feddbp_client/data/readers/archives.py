"""Members of tar and zip files, read in memory: nothing is ever written under a name from an archive."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from typing import TYPE_CHECKING

from feddbp_client.data.images import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from re import Pattern

_MOST_BYTES = 256 << 20
"""More than any member of a known archive: the largest, CIFAR-100's training file, has 155 million."""

_DAMAGE = (OSError, EOFError, RuntimeError, ValueError, tarfile.TarError, zipfile.BadZipFile, zlib.error)


def tar_members(path: Path, wanted: Pattern[str]) -> Iterator[tuple[str, bytes]]:
    """Name and content of the ordinary files whose whole name matches, in the archive's order."""
    try:
        # As a stream: seeking back would inflate the archive again.
        with tarfile.open(path, "r|gz") as archive:
            for member in archive:
                if not (member.isreg() and wanted.fullmatch(member.name)):
                    continue
                _check_size(path, member.name, member.size)
                content = archive.extractfile(member)
                assert content is not None  # it is for members that are not files
                yield member.name, content.read()
    except _DAMAGE as error:
        raise DataError(f"{path}: damaged archive: {error}") from error


class ZipMembers:
    """The files of a zip whose whole name matches, sorted by name and read one at a time."""

    def __init__(self, path: Path, wanted: Pattern[str]) -> None:
        self._path = path
        try:
            self._archive = zipfile.ZipFile(path)
        except _DAMAGE as error:
            raise DataError(f"{path}: damaged archive: {error}") from error
        self.names = sorted(name for name in self._archive.namelist() if wanted.fullmatch(name))

    def __enter__(self) -> ZipMembers:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    def read(self, name: str) -> bytes:
        try:
            _check_size(self._path, name, self._archive.getinfo(name).file_size)
            return self._archive.read(name)
        except _DAMAGE as error:
            raise DataError(f"{self._path}: {name} is damaged: {error}") from error


def _check_size(path: Path, name: str, size: int) -> None:
    if size > _MOST_BYTES:
        raise DataError(f"{path}: {name} claims {size} bytes, more than any file of a known data set")
