"""Reads a model from flags, environment variables and a TOML file.

An option is declared once, as a field of the model, which gives its flag, its variable and its key in the file. A
nested model gives a group in `--help` and a table in the file. Later sources win: defaults, file, environment, flags.
Error messages name the source of the value.
"""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ByteSize
from pydantic.fields import FieldInfo

from feddbp_common.config.diagnostics import similar_names, suggestion, validate_model
from feddbp_common.config.nested import Location, Tree, get, leaves, put
from feddbp_common.config.types import field_extra, format_duration, format_size
from feddbp_common.errors import ConfigurationError

ModelT = TypeVar("ModelT", bound=BaseModel)
_UNSET = argparse.SUPPRESS
_TYPO_SIMILARITY = 0.8
"""From this similarity on, of at most 1, an unknown table is taken for a typo of a known one."""
_PLACEHOLDERS: Final[tuple[tuple[type, str], ...]] = (
    (ByteSize, "SIZE"),  # before int, which it is, too
    (int, "N"),
    (float, "X"),
    (timedelta, "TIME"),
    (Path, "PATH"),
)
"""The value of an option in its help, by type; a text has the last word of the option's name."""
_TELLING_NAMES: Final = frozenset({"DIR", "FILE", "PORT"})
"""Last words of names that say more than the type of the value."""


@dataclass(frozen=True)
class Option:
    """A leaf of the model as the user sees it."""

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
        """Whether the field is a dict, whose items are given as one NAME=VALUE per flag."""
        return get_origin(self.field.annotation) is dict

    def variable(self, prefix: str) -> str:
        return prefix + self.flag.removeprefix("--").replace("-", "_").upper()


def options_of(model: type[BaseModel], location: Location = (), group: str = "options") -> Iterator[Option]:
    """Yields the leaves of the model; a nested model's group is its docstring up to the colon."""
    for name, field in model.model_fields.items():
        nested = field.annotation
        if isinstance(nested, type) and issubclass(nested, BaseModel):
            title = (nested.__doc__ or name).split(":")[0].strip().lower()
            yield from options_of(nested, (*location, name), title)
        else:
            yield Option((*location, name), field, group)


def add_flags(parser: argparse.ArgumentParser, model: type[BaseModel], *, env_prefix: str) -> None:
    """Adds a flag for every option of the model, in a group for each nested model."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in options_of(model):
        if option.extra.get("hidden"):
            continue
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        group = groups[option.group]
        variable = option.variable(env_prefix)
        help_text = f"{option.field.description or ''}{_default_text(option.field)} [{variable}]".replace("%", "%%")
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
    stored: Callable[[Tree], Tree] = lambda _: {},
) -> ModelT:
    """Merges all sources and validates the result.

    `stored` is called with the options that are given, and returns those that an earlier process has stored; given ones
    win over them.

    `file_variable` is the variable that named the file, if no flag did. All commands read such a file, so tables of
    other commands are ignored in it.

    Raises:
        ConfigurationError: one line that names the source at fault.
    """
    merged: dict[str, Any] = {}
    sources: dict[Location, str] = {}
    options = list(options_of(model))
    problems = [] if file is None else _merge_file(file, file_variable, options, merged, sources)
    for option in options:
        variable = option.variable(env_prefix)
        if variable in environ:
            text = environ[variable]
            _merge_value(option, text.split(";") if option.is_assignment else text, variable, merged, sources)
        if hasattr(flags, option.destination):
            _merge_value(option, getattr(flags, option.destination), option.flag, merged, sources)
    by_location = {option.location: option for option in options}
    for location, value in leaves({} if problems else stored(merged), whole=by_location):
        if location not in sources:
            put(merged, location, value)
    return validate_model(model, merged, options=options, sources=sources, problems=problems)


def _merge_file(
    file: Path,
    variable: str | None,
    options: Sequence[Option],
    merged: dict[str, Any],
    sources: dict[Location, str],
) -> list[str]:
    """Adds the options in a file, and returns what is wrong with others in it."""
    origin = f"{variable or '--config'} {file}"
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{origin}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{origin}: not a TOML file: {error}") from None
    by_location = {option.location: option for option in options}
    problems = []
    own_tables = {location[0] for location in by_location if len(location) > 1}
    for location, value in leaves(content, whole=by_location):
        if location not in by_location:
            if variable is not None and _belongs_to_another_command(location, own_tables):
                continue
            hint = suggestion(similar_options(location, by_location))
            problems.append(f"{origin}: there is no option {'.'.join(location)!r}{hint}")
            continue
        put(merged, location, value)
        sources[location] = f"{file}: {'.'.join(location)}"
    return problems


def similar_options(given: Location, known: Collection[Location]) -> list[str]:
    """The option of the same name in another table, or else one of a similar name; at most one."""
    names = {".".join(location): location for location in known}
    same_name = [name for name, location in names.items() if location[-1] == given[-1]]
    return same_name[:1] or similar_names(".".join(given), names)


def _belongs_to_another_command(location: Location, own_tables: Collection[str]) -> bool:
    """Whether the option's table is neither one of this command's nor a typo of one."""
    return (
        len(location) > 1
        and location[0] not in own_tables
        and not get_close_matches(location[0], own_tables, cutoff=_TYPO_SIMILARITY)
    )


def _merge_value(option: Option, value: Any, source: str, merged: dict[str, Any], sources: dict[Location, str]) -> None:
    """Puts a value over that of earlier sources; NAME=VALUE pairs are added to those of earlier sources."""
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
    if isinstance(shown, ByteSize):
        return f" (default: {format_size(shown)})"
    return f" (default: {format_duration(shown) if hasattr(shown, 'total_seconds') else shown})"


def _metavar(option: Option) -> str:
    annotation = _without_none(option.field.annotation)
    choices = list(get_args(annotation)) if get_origin(annotation) is Literal else []
    kind = annotation if isinstance(annotation, type) and get_origin(annotation) is None else object
    if issubclass(kind, Enum):
        choices = [member.value for member in kind]
    if choices:
        return "{" + ",".join(map(str, choices)) + "}"
    if option.is_assignment:
        return "NAME=VALUE"
    last_word = option.location[-1].split("_")[-1].upper()
    if last_word in _TELLING_NAMES:
        return last_word
    return next((shown for known, shown in _PLACEHOLDERS if issubclass(kind, known)), last_word)


def _without_none(annotation: Any) -> Any:
    """The type of a value that is given: of several the first."""
    if get_origin(annotation) in (Union, UnionType):
        annotation = next(kind for kind in get_args(annotation) if kind is not NoneType)
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
