"""Where results are kept: a directory, or an fsspec address such as `s3://bucket/results`.

Keys are relative paths with `/`. What is written is there as a whole or not at all in a directory, in memory and in
object stores; file servers behind fsspec may show a file that is still being written, so readers of large files check
a digest (`copies`).
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from feddbp_common.atomic_files import commit_file
from feddbp_common.errors import ConfigurationError
from feddbp_common.optional_deps import require

_NO_HARD_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class Store(Protocol):
    """Files by key. Operations raise OSError if the store cannot be reached."""

    def read(self, key: str) -> bytes | None:
        """The content; None if there is no such file."""

    def write(self, key: str, content: bytes) -> None:
        """Creates or replaces a file."""

    def create(self, key: str, content: bytes) -> bool:
        """Creates a file, whose content no other writer has; false if there is one of this name already."""

    def names(self, key: str) -> list[str]:
        """The names of files and folders in a folder; none if there is no such folder."""

    def delete(self, keys: Iterable[str]) -> None:
        """Files that do not exist are passed over."""

    def upload(self, path: Path, key: str) -> None: ...

    def download(self, key: str, path: Path) -> None:
        """Raises FileNotFoundError if there is no such file."""


def is_address(out: str) -> bool:
    """Whether --out is an fsspec address, not a path."""
    return "://" in out


def open_store(out: str) -> Store:
    return FsspecStore(out) if is_address(out) else DirectoryStore(Path(out))


@dataclass(frozen=True)
class DirectoryStore:
    """A directory, possibly shared between machines. `create` is exclusive wherever link(2) is, NFS included."""

    path: Path

    def read(self, key: str) -> bytes | None:
        try:
            return (self.path / key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, key: str, content: bytes) -> None:
        with self._partial_file(key) as partial:
            partial.write_bytes(content)
            commit_file(partial, self.path / key)

    def create(self, key: str, content: bytes) -> bool:
        target = self.path / key
        with self._partial_file(key) as partial:
            partial.write_bytes(content)
            try:
                target.hardlink_to(partial)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _NO_HARD_LINKS:
                    raise
                return _create_exclusively(target, content)
        return True

    def names(self, key: str) -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(self.path / key))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            (self.path / key).unlink(missing_ok=True)

    def upload(self, path: Path, key: str) -> None:
        with self._partial_file(key) as partial:
            shutil.copyfile(path, partial)
            commit_file(partial, self.path / key)

    def download(self, key: str, path: Path) -> None:
        shutil.copyfile(self.path / key, path)

    @contextmanager
    def _partial_file(self, key: str) -> Iterator[Path]:
        """A file of its own for every writer, since several may write the same key; removed unless it is renamed."""
        target = self.path / key
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
        try:
            yield partial
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def _driver_errors() -> Iterator[None]:
    """Raises OSError for the errors that drivers have of their own, such as that of S3's for a lost connection."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}") from error


class FsspecStore:
    """An address for which fsspec has a driver. `create` is exclusive if the driver's `pipe_file` is.

    It is in memory, and on S3 and Google's store, whose drivers send the condition with the request. The generic one
    looks first and writes then: two runners that take the same cell in the same instant may both get it.
    """

    def __init__(self, address: str) -> None:
        require("an --out address", ["fsspec"], extra="ray")
        from fsspec import url_to_fs

        self.address = address
        try:
            self._files, self._root = url_to_fs(address)
        except (ImportError, ValueError) as error:
            raise ConfigurationError(f"--out {address}: {error}") from None

    @_driver_errors()
    def read(self, key: str) -> bytes | None:
        try:
            content: bytes = self._files.cat_file(self._at(key))
        except FileNotFoundError:
            return None
        return content

    @_driver_errors()
    def write(self, key: str, content: bytes) -> None:
        self._make_parent(key)
        self._files.pipe_file(self._at(key), content)

    @_driver_errors()
    def create(self, key: str, content: bytes) -> bool:
        self._make_parent(key)
        try:
            self._files.pipe_file(self._at(key), content, mode="create")
        except Exception:
            # drivers differ in how they say that there is one, and one that repeats a request may meet its own file
            if (found := self.read(key)) is None:
                raise
            return found == content
        # where the driver cannot create exclusively, the last of several writers has it
        self._files.invalidate_cache()
        return self.read(key) == content

    @_driver_errors()
    def names(self, key: str) -> list[str]:
        self._files.invalidate_cache()
        try:
            found: list[Any] = self._files.ls(self._at(key), detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(str(path).rstrip("/").rpartition("/")[2] for path in found)

    @_driver_errors()
    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            with suppress(FileNotFoundError):
                self._files.rm_file(self._at(key))

    @_driver_errors()
    def upload(self, path: Path, key: str) -> None:
        self._make_parent(key)
        self._files.put_file(str(path), self._at(key))

    @_driver_errors()
    def download(self, key: str, path: Path) -> None:
        self._files.get_file(self._at(key), str(path))

    def _at(self, key: str) -> str:
        return f"{self._root.rstrip('/')}/{key}"

    def _make_parent(self, key: str) -> None:
        self._files.makedirs(self._at(key).rpartition("/")[0], exist_ok=True)


def _create_exclusively(target: Path, content: bytes) -> bool:
    """Without hard links: a reader may see the file before its content, and takes it for one it cannot read."""
    try:
        file = target.open("xb")
    except FileExistsError:
        return False
    try:
        with file:
            file.write(content)
    except BaseException:
        target.unlink(missing_ok=True)  # the writer that was told of a failure has nothing
        raise
    return True
