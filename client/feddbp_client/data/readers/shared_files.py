"""Files that several processes of one machine share: a lock per file, and atomic writes."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from feddbp_common.atomic_files import commit_file
from feddbp_common.file_lock import FileLock, LockHeldError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_log = logging.getLogger(__name__)


def exclusive(target: Path) -> FileLock:
    """Acquires an exclusive lock for target, waiting for it; raises OSError if its folder is not writable."""
    path = target.with_name(f".{target.name.removeprefix('.')}.lock")
    try:
        return FileLock(path)
    except LockHeldError:
        _log.info("waiting for another process that writes %s", target)
        return FileLock(path, wait=True)


@contextmanager
def replacing(target: Path) -> Iterator[IO[bytes]]:
    """A file that replaces target when the block succeeds, and is removed when it raises.

    For the holder of target's lock: the name of the partial file is fixed, so that the next attempt overwrites what a
    crash left behind.
    """
    part = target.with_name(f".{target.name.removeprefix('.')}.part")
    try:
        with part.open("wb") as handle:
            yield handle
        commit_file(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
