"""The methods by name. A method is a contract here, a strategy on the server and a trainer on the client."""

from __future__ import annotations

from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

from feddbp_common.errors import ConfigurationError
from feddbp_common.methods.contract import ExchangeShape, Method, MethodSettings
from feddbp_common.methods.feddbp import FEDDBP
from feddbp_common.methods.local import LOCAL

METHODS: Final = MappingProxyType({method.name: method for method in (FEDDBP, LOCAL)})


def method_named(name: str) -> Method:
    if name in METHODS:
        return METHODS[name]
    guess = get_close_matches(name.lower(), METHODS, n=1)
    hint = f"did you mean {guess[0]!r}?" if guess else f"there are: {', '.join(METHODS)}"
    raise ConfigurationError(f"no method is called {name!r}; {hint}")


__all__ = ["METHODS", "ExchangeShape", "Method", "MethodSettings", "method_named"]
