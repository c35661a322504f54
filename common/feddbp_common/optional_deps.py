"""Optional dependencies: which are missing, and how to install them."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Final

from feddbp_common.errors import ConfigurationError


def require(who: str, modules: Iterable[str], *, extra: str) -> None:
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"{who} needs {', '.join(missing)}: pip install 'feddbp[{extra}]'")


_NEEDED: Final = ("torch", "torchvision", "sklearn", "safetensors", "matplotlib", "jinja2")


def require_lab(who: str) -> None:
    require(who, _NEEDED, extra="lab")
