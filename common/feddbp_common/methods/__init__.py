"""Methods by name. A method consists of a contract here, a strategy on the server and a trainer on the client."""

from __future__ import annotations

from typing import Any, Final

from feddbp_common.config.diagnostics import did_you_mean
from feddbp_common.errors import ConfigurationError
from feddbp_common.methods.contract import ExchangeShape, Method, MethodSettings
from feddbp_common.methods.fd import FD
from feddbp_common.methods.fedavg import FEDAVG
from feddbp_common.methods.feddbp import FEDDBP
from feddbp_common.methods.fedgen import FEDGEN
from feddbp_common.methods.fedkd import FEDKD
from feddbp_common.methods.fedlfp import FEDLFP
from feddbp_common.methods.fedmrl import FEDMRL
from feddbp_common.methods.fedproc import FEDPROC
from feddbp_common.methods.fedproto import FEDPROTO
from feddbp_common.methods.fedtgp import FEDTGP
from feddbp_common.methods.fpl import FPL
from feddbp_common.methods.frozen import FROZEN
from feddbp_common.methods.lg_fedavg import LG_FEDAVG
from feddbp_common.methods.local import LOCAL
from feddbp_common.methods.registry import MethodRegistry

PRESET_MARK: Final = ":"
METHODS: Final = MethodRegistry(
    (
        FEDDBP,
        FEDPROTO,
        FEDPROC,
        FPL,
        FEDTGP,
        FEDLFP,
        FD,
        LG_FEDAVG,
        FEDGEN,
        FEDKD,
        FEDMRL,
        FEDAVG,
        FROZEN,
        LOCAL,
    )
)


def method_named(name: str) -> Method:
    if name in METHODS:
        return METHODS[name]
    hint = did_you_mean(name.lower(), METHODS) or f"; there are: {', '.join(METHODS)}"
    raise ConfigurationError(f"no method is called {name!r}{hint}")


def split_preset(name: str) -> tuple[str, dict[str, Any]]:
    """Splits `NAME` or `NAME:PRESET` into the method's name and the preset's settings."""
    name, colon, preset = name.partition(PRESET_MARK)
    if not colon:
        return name, {}
    presets = method_named(name).presets
    if preset not in presets:
        known = f"it has: {', '.join(presets)}" if presets else "it has none"
        raise ConfigurationError(f"{name} has no preset {preset!r}; {known}")
    return name, dict(presets[preset].settings)


__all__ = ["METHODS", "PRESET_MARK", "ExchangeShape", "Method", "MethodSettings", "method_named", "split_preset"]
