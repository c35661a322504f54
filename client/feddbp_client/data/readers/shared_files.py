"""Files several processes of one machine share: a lock between them, and writes that are whole or absent."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from feddbp_common.atomic_files import settle
from feddbp_common.file_lock import FileLock, LockHeldError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_log = logging.getLogger(__name__)


def exclusive(target: Path) -> FileLock:
    """Acquires the lock that guards target, waiting for it; OSError if its folder cannot be written."""
    path = target.with_name(f".{target.name.removeprefix('.')}.lock")
    try:
        return FileLock(path)
    except LockHeldError:
        _log.info("waiting for another process that is preparing %s", target)
        return FileLock(path, wait=True)


@contextmanager
def replacing(target: Path) -> Iterator[IO[bytes]]:
    """A file to write that becomes target when the block ends well, and vanishes when it does not.

    For whoever holds the lock on target: the name of the unfinished file is fixed, so that what a crash left
    behind is overwritten by the next attempt and not kept for ever.
    """
    part = target.with_name(f".{target.name.removeprefix('.')}.part")
    try:
        with part.open("wb") as handle:
            yield handle
        settle(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
