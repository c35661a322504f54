"""Packages that only some commands need: asked for before the work begins, and by the name of the extra."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from feddbp_common.errors import ConfigurationError


def require(who: str, modules: Iterable[str], *, extra: str) -> None:
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"{who} needs {', '.join(missing)}: pip install 'feddbp[{extra}]'")
