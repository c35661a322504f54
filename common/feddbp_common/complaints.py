"""What is wrong with a configuration, in one line that names the flag, variable or line of a file it came from.

A mistake in one value is found where that value is. One that only shows when values are seen together has no such
place: it is traced by leaving out what was given, piece by piece, until nobody complains any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from feddbp_common.errors import ConfigurationError

if TYPE_CHECKING:
    from feddbp_common.settings import Location, Option

ModelT = TypeVar("ModelT", bound=BaseModel)
Tree = Mapping[str, Any]


def validated(
    model: type[ModelT], given: Tree, *, options: Sequence[Option], sources: Mapping[Location, str]
) -> ModelT:
    """The model of what was given, or a complaint; `sources` says where each value came from."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        complaint = _about_one_value(error, options, sources) or _with_sources(_text_of(error), model, given, sources)
    except ConfigurationError as error:
        complaint = _with_sources(str(error), model, given, sources)
    raise ConfigurationError(complaint)


def _about_one_value(error: ValidationError, options: Sequence[Option], sources: Mapping[Location, str]) -> str | None:
    first = error.errors()[0]
    location = tuple(part for part in first["loc"] if isinstance(part, str))
    for option in options:
        if location[: len(option.location)] == option.location:
            if first["type"] == "missing":
                return f"{option.flag} is required"
            source = sources.get(option.location, option.flag)
            given = f" (got {first['input']!r})" if isinstance(first["input"], str | int | float) else ""
            message = _text_of(error)
            return f"{source}: {message[0].lower()}{message[1:]}{given}"
    return None


def _text_of(error: ValidationError) -> str:
    return error.errors()[0]["msg"].removeprefix("Value error, ")


def _with_sources(complaint: str, model: type[BaseModel], given: Tree, sources: Mapping[Location, str]) -> str:
    """The complaint, with where the values at fault came from unless it says so itself."""
    without = {location: _complaint(model, _pruned(given, location)) for location in sources}
    # of several mistakes, leaving one out brings the next to light: a different complaint has to do then
    cleared = [location for location, rest in without.items() if rest is None]
    at_fault = cleared or [location for location, rest in without.items() if rest != complaint]
    names = list(dict.fromkeys(sources[location] for location in at_fault))
    if all(name in complaint for name in names):
        return complaint
    return f"{' and '.join(names)}: {complaint}"


def _complaint(model: type[BaseModel], given: Tree) -> str | None:
    try:
        model.model_validate(given)
    except ValidationError as error:
        return _text_of(error)
    except ConfigurationError as error:
        return str(error)
    return None


def _pruned(given: Tree, location: Location) -> Tree:
    """The same without one value."""

    def branches(tree: Tree, path: Location) -> Iterator[tuple[str, Any]]:
        for key, value in tree.items():
            if key != path[0]:
                yield key, value
            elif len(path) > 1:
                yield key, dict(branches(value, path[1:]))

    return dict(branches(given, location))
