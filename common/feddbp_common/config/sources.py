"""One typed model behind flags, environment variables and a TOML file.

The model is the only place where an option is declared: a field gives its flag, its variable and its key in the file,
a nested model gives a group of `--help` and a table of the file. Later sources win: defaults, file, environment, flags.
Every complaint names the source the value came from.
"""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from feddbp_common.config.diagnostics import did_you_mean, suggestion, validated
from feddbp_common.config.nested import Location, get, leaves, put
from feddbp_common.config.types import field_extra, format_duration
from feddbp_common.errors import ConfigurationError

ModelT = TypeVar("ModelT", bound=BaseModel)
_UNSET = argparse.SUPPRESS
_MISSPELT = 0.8
"""How alike two names of tables are (of 1) before one is taken for a slip of the pen."""


@dataclass(frozen=True)
class Option:
    """One leaf of the model, seen from outside."""

    location: Location
    field: FieldInfo
    group: str

    @property
    def extra(self) -> Mapping[str, Any]:
        return field_extra(self.field)

    @property
    def flag(self) -> str:
        return str(self.extra.get("flag", "--" + self.location[-1].replace("_", "-")))

    @property
    def destination(self) -> str:
        return ".".join(self.location)

    @property
    def is_assignment(self) -> bool:
        """A field of name=value pairs, given one pair a flag."""
        return get_origin(self.field.annotation) is dict

    def variable(self, prefix: str) -> str:
        return prefix + self.flag.removeprefix("--").replace("-", "_").upper()


def options_of(model: type[BaseModel], location: Location = (), group: str = "options") -> Iterator[Option]:
    for name, field in model.model_fields.items():
        nested = field.annotation
        if isinstance(nested, type) and issubclass(nested, BaseModel):
            title = (nested.__doc__ or name).split(":")[0].strip().lower()
            yield from options_of(nested, (*location, name), title)
        else:
            yield Option((*location, name), field, group)


def build_parser(parser: argparse.ArgumentParser, model: type[BaseModel], *, env_prefix: str) -> None:
    """Adds a flag for every option of the model, grouped as the model is."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in options_of(model):
        if option.extra.get("hidden"):
            continue
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        group = groups[option.group]
        shown = option.variable(env_prefix)
        help_text = f"{option.field.description or ''}{_default_text(option.field)} [{shown}]".replace("%", "%%")
        if option.field.annotation is bool:
            group.add_argument(
                option.flag,
                dest=option.destination,
                action="store_true",
                default=_UNSET,
                help=help_text,
            )
        else:
            group.add_argument(
                option.flag,
                *option.extra.get("aliases", ()),
                dest=option.destination,
                action="append" if option.is_assignment else "store",
                metavar=option.extra.get("metavar", _metavar(option)),
                default=_UNSET,
                help=help_text,
            )


def resolve(
    model: type[ModelT],
    flags: argparse.Namespace,
    *,
    env_prefix: str,
    file: Path | None = None,
    file_variable: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> ModelT:
    """The model from all its sources, or one line that says which of them is wrong and why.

    A file that a variable has named is there for every command of the environment: tables of other commands are
    passed over in it.
    """
    merged: dict[str, Any] = {}
    sources: dict[Location, str] = {}
    options = list(options_of(model))
    if file is not None:
        _merge_file(file, file_variable, options, merged, sources)
    for option in options:
        variable = option.variable(env_prefix)
        if variable in environ:
            text = environ[variable]
            _put(option, text.split(";") if option.is_assignment else text, variable, merged, sources)
        if hasattr(flags, option.destination):
            _put(option, getattr(flags, option.destination), option.flag, merged, sources)
    return validated(model, merged, options=options, sources=sources)


def _merge_file(
    file: Path,
    variable: str | None,
    options: Sequence[Option],
    merged: dict[str, Any],
    sources: dict[Location, str],
) -> None:
    told = f"{variable or '--config'} {file}"
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{told}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{told}: not a TOML file: {error}") from None
    by_location = {option.location: option for option in options}
    own_tables = {location[0] for location in by_location if len(location) > 1}
    for location, value in leaves(content, whole=by_location):
        if location not in by_location and variable is not None and _is_of_another(location, own_tables):
            continue
        if location not in by_location:
            raise ConfigurationError(f"{told}: there is no option {'.'.join(location)!r}{_hint(location, by_location)}")
        put(merged, location, value)
        sources[location] = f"{file}: {'.'.join(location)}"


def _hint(given: Location, known: Collection[Location]) -> str:
    """The option that was meant, as far as one can guess: the same in its table, or one of nearly that name."""
    names = {".".join(location): location for location in known}
    in_a_table = [name for name, location in names.items() if location[-1] == given[-1]]
    return suggestion(in_a_table[:1]) or did_you_mean(".".join(given), names)


def _is_of_another(location: Location, own_tables: Collection[str]) -> bool:
    """Whether an option is in a table of another command, rather than in one of ours that is misspelt."""
    return (
        len(location) > 1
        and location[0] not in own_tables
        and not get_close_matches(location[0], own_tables, cutoff=_MISSPELT)
    )


def _put(option: Option, value: Any, source: str, merged: dict[str, Any], sources: dict[Location, str]) -> None:
    """Takes a value from a source; pairs are added to those of sources before, anything else takes their place."""
    before = sources.get(option.location)
    sources[option.location] = f"{before} or {source}" if option.is_assignment and before else source
    if option.is_assignment:
        earlier = get(merged, option.location)
        if earlier is not None and not isinstance(earlier, Mapping):
            raise ConfigurationError(f"{before}: {earlier!r} is not a table of settings")
        pairs: dict[str, Any] = dict(earlier or {})
        for pair in value:
            name, equals, text = pair.partition("=")
            if not equals or not name.strip():
                raise ConfigurationError(f"{source}: {pair!r} is not NAME=VALUE")
            pairs[name.strip()] = text.strip()
        value = pairs
    put(merged, option.location, value)


def _default_text(field: FieldInfo) -> str:
    default = field.get_default()
    if field.is_required():
        return " (required)"
    if default is None or default is False or default in ((), {}, ""):
        return ""
    shown = default.value if isinstance(default, Enum) else default
    return f" (default: {format_duration(shown) if hasattr(shown, 'total_seconds') else shown})"


def _metavar(option: Option) -> str:
    annotation = option.field.annotation
    choices = list(get_args(annotation)) if get_origin(annotation) is Literal else []
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        choices = [member.value for member in annotation]
    if choices:
        return "{" + ",".join(map(str, choices)) + "}"
    return "NAME=VALUE" if option.is_assignment else option.location[-1].split("_")[-1].upper()
