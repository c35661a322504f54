"""Files that several processes of one machine share: a lock per file, and atomic writes."""

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
    """Holds an exclusive lock for target; raises OSError if its folder is not writable.

    The kernel releases the lock with the process, so a crash leaves nothing to clean up. The empty lock file stays:
    were it removed, a third process could lock a new file of that name while a second one holds the old.
    """
    with target.with_name(f".{target.name.removeprefix('.')}.lock").open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.info("waiting for another process that writes %s", target)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


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
