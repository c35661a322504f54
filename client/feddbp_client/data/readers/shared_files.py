"""Files several processes of one machine share: a lock between them, and writes that are whole or absent."""

from __future__ import annotations

import fcntl
import logging
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from feddbp_common.atomic_files import commit_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_log = logging.getLogger(__name__)


@contextmanager
def exclusive(target: Path) -> Iterator[None]:
    """Holds the lock that guards target; OSError if its folder cannot be written.

    The kernel frees the lock with its process, so a crash leaves nothing to clean up. The empty lock file
    stays: were it removed, a third process could lock a new file of that name while a second holds the old.
    """
    with target.with_name(f".{target.name.removeprefix('.')}.lock").open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.info("waiting for another process that is preparing %s", target)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


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
        commit_file(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
