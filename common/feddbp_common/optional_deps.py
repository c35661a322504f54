"""Optional dependencies: reports which are missing and how to install them."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from feddbp_common.errors import ConfigurationError


def require(feature: str, modules: Iterable[str], *, extra: str) -> None:
    """Raises ConfigurationError if a module that the feature needs is not installed."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"{feature} needs {', '.join(missing)}: pip install 'feddbp[{extra}]'")
