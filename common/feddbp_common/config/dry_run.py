"""`--dry-run`: prints a command's resolved options, as JSON or as the TOML file that `--config` reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel

from feddbp_common.config.identity import visible

DryRunFormat = Literal["json", "toml"]
FORMAT_HELP: Final = "with --dry-run: json, or toml, which --config reads"
_OF_DRY_RUN: Final = ("dry_run", "dry_run_format")


def print_options(config: BaseModel, form: DryRunFormat) -> None:
    values = {
        table: {name: value for name, value in options.items() if name not in _OF_DRY_RUN}
        for table, options in visible(config).items()
    }
    print("\n".join(_toml(values)) if form == "toml" else json.dumps(values, indent=2))


def _toml(tree: Mapping[str, Any], *table: str) -> Iterator[str]:
    """A table and those in it; TOML has no null, so options without a value are left out."""
    plain = {name: value for name, value in tree.items() if value is not None and not isinstance(value, Mapping)}
    if table and plain:
        yield f"[{'.'.join(map(_key, table))}]"
    for name, value in plain.items():
        yield f"{_key(name)} = {_value(value)}"
    if plain:
        yield ""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _toml(value, *table, name)


def _key(name: str) -> str:
    is_bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if is_bare else _value(name)


def _value(value: Any) -> str:
    """Numbers, booleans, strings and lists of them are written as in JSON, but for the character DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
