"""Command lines for child processes: from a configuration back to the flags that resolve to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from feddbp_common.config.nested import Location
from feddbp_common.config.sources import Option, options_of
from feddbp_common.config.variables import ENV_PREFIX


def arguments_for(config: BaseModel) -> list[str]:
    """Flags for every option that differs from its default."""
    as_json = config.model_dump(mode="json")
    arguments: list[str] = []
    for option in options_of(type(config)):
        value = _at(config, option.location)
        if value != option.field.get_default(call_default_factory=True):
            arguments.extend(_as_flags(option, _at(as_json, option.location)))
    return arguments


def clean_environment() -> dict[str, str]:
    """The environment without this project's variables: a child is configured by its command line alone."""
    return {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}


def _as_flags(option: Option, value: Any) -> Iterator[str]:
    # --flag=value in one argument: a value may begin with a dash
    if value is True:
        yield option.flag
    elif isinstance(value, dict):
        # None has no text form; leaving the setting out means the same
        yield from (f"{option.flag}={name}={setting}" for name, setting in value.items() if setting is not None)
    elif isinstance(value, list):
        yield f"{option.flag}={','.join(map(str, value))}"
    else:
        yield f"{option.flag}={value}"


def _at(tree: Any, location: Location) -> Any:
    for name in location:
        tree = tree[name] if isinstance(tree, dict) else getattr(tree, name)
    return tree
