"""Paths that a user gives, which may be those of another user, or of another kind than is asked for."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def is_there(path: Path) -> bool:
    """Whether this process sees something at a path: `Path.exists` raises where it may not look."""
    try:
        path.stat()
    except OSError:
        return False
    return True


def directory_problem(path: Path) -> str | None:
    """Why a directory cannot be used, or made, as a clause; None if nothing is known against it. Writes nothing."""
    for place in (path, *path.parents):
        try:
            mode = place.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return str(error.strerror)
        if not stat.S_ISDIR(mode):
            return f"{'it' if place == path else place} is a file; give a directory"
        return None if _is_writable(place) else os.strerror(errno.EACCES)
    return None


def _is_writable(directory: Path) -> bool:
    """Whether this user may write to a directory; that its disk is read-only is said by the first write."""
    return os.access(directory, os.W_OK | os.X_OK) or bool(os.statvfs(directory).f_flag & os.ST_RDONLY)
