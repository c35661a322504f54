"""Which runs can be compared client by client with local training: those that differ in their method alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from feddbp_common.config.nested import leaves

LOCAL: Final = "local"
"""The method whose clients exchange nothing: what others gain is the difference from it."""
_OF_METHOD: Final = ("method", "method_settings", "guide", "exchange", "finetune_rounds", "finetune_state")
"""Options, or groups of them, that are a method's own; FedTGP has no fine-tuning."""

Options = tuple[tuple[str, str], ...]
"""Names and values, sorted: equal for runs that have the same."""


def split_of(config: Mapping[str, Any]) -> Options:
    """The options that give clients their data, networks and training, of a configuration, nested or dotted."""
    return _options(config, of_method=False)


def method_options_of(config: Mapping[str, Any]) -> Options:
    """The options that tell methods on the same split apart."""
    return _options(config, of_method=True)


def _options(config: Mapping[str, Any], *, of_method: bool) -> Options:
    named = {".".join(location): str(value) for location, value in leaves(config)}
    return tuple(sorted((name, value) for name, value in named.items() if _is_of_method(name) == of_method))


def _is_of_method(name: str) -> bool:
    return name.partition(".")[0] in _OF_METHOD
