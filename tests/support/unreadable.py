"""Directories that another user owns: root, as whom tests may run, could read them."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def close_to_this_user(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Lets nothing below a directory be opened, and nothing be learnt of it, as one of mode 0700."""

    def refusing(call: Callable[..., Any]) -> Callable[..., Any]:
        def refuse_below(path: Any, *args: Any, **options: Any) -> Any:
            if isinstance(path, str | os.PathLike) and directory in Path(path).parents:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
            return call(path, *args, **options)

        return refuse_below

    for module, name in ((os, "stat"), (os, "open"), (os, "mkdir"), (io, "open")):
        monkeypatch.setattr(module, name, refusing(getattr(module, name)))
