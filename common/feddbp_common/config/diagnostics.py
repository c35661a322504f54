"""What is wrong with a configuration, in one line that names the flag, variable or line of a file it came from.

A mistake in one value is found where that value is. One that only shows when values are seen together has no such
place: it is traced by leaving out what was given, piece by piece, until nobody complains any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from feddbp_common.config.nested import Location, Tree, without
from feddbp_common.errors import ConfigurationError

if TYPE_CHECKING:
    from feddbp_common.config.sources import Option


ModelT = TypeVar("ModelT", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The first thing pydantic has to say of a value."""

    location: Location
    kind: str
    text: str
    given: Any

    @classmethod
    def first_of(cls, error: ValidationError) -> Problem:
        first = error.errors()[0]
        text = first["msg"].removeprefix("Value error, ")
        return cls(location=tuple(map(str, first["loc"])), kind=first["type"], text=text, given=first["input"])

    @property
    def where(self) -> str:
        return ".".join(self.location)

    @property
    def as_clause(self) -> str:
        """The text as it goes on after a colon."""
        return f"{self.text[0].lower()}{self.text[1:]}"

    def __str__(self) -> str:
        return f"{self.where}: {self.as_clause}" if self.location else self.text


def validated(
    model: type[ModelT], given: Tree, *, options: Sequence[Option], sources: Mapping[Location, str]
) -> ModelT:
    """The model of what was given, or a complaint; `sources` says where each value came from."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        first = Problem.first_of(error)
        complaint = _about_one_value(first, options, sources) or _with_sources(first.text, model, given, sources)
    except ConfigurationError as error:
        complaint = _with_sources(str(error), model, given, sources)
    raise ConfigurationError(complaint)


def _about_one_value(first: Problem, options: Sequence[Option], sources: Mapping[Location, str]) -> str | None:
    for option in options:
        if first.location[: len(option.location)] == option.location:
            if first.kind == "missing":
                return f"{option.flag} is required"
            source = sources.get(option.location, option.flag)
            given = f" (got {first.given!r})" if isinstance(first.given, str | int | float) else ""
            return f"{source}: {first.as_clause}{given}"
    return None


def _with_sources(complaint: str, model: type[BaseModel], given: Tree, sources: Mapping[Location, str]) -> str:
    """The complaint, with where the values at fault came from unless it says so itself."""
    left = {location: _complaint(model, without(given, location)) for location in sources}
    # of several mistakes, leaving one out brings the next to light: a different complaint has to do then
    cleared = [location for location, rest in left.items() if rest is None]
    at_fault = cleared or [location for location, rest in left.items() if rest != complaint]
    names = list(dict.fromkeys(sources[location] for location in at_fault))
    if all(name in complaint for name in names):
        return complaint
    return f"{' and '.join(names)}: {complaint}"


def _complaint(model: type[BaseModel], given: Tree) -> str | None:
    try:
        model.model_validate(given)
    except ValidationError as error:
        return Problem.first_of(error).text
    except ConfigurationError as error:
        return str(error)
    return None


def did_you_mean(name: str, known: Iterable[str], *, most: int = 1) -> str:
    """The end of a complaint, `; did you mean 'this'?`, or nothing if no known name is near."""
    return suggestion(get_close_matches(name, list(known), n=most))


def suggestion(names: Iterable[str]) -> str:
    listed = " or ".join(map(repr, names))
    return f"; did you mean {listed}?" if listed else ""
