"""Error messages for configurations: one line that names the flag, variable or line of a file at fault.

An error in one value is reported at that value. An error that only shows when values are combined has no location:
its source is found by validating again without each value in turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from feddbp_common.config.nested import Location, Tree, without
from feddbp_common.errors import ConfigurationError

if TYPE_CHECKING:
    from feddbp_common.config.sources import Option


ModelT = TypeVar("ModelT", bound=BaseModel)
_TYPO_SIMILARITY: Final = 0.75
"""From this similarity on, of at most 1, a name is taken for a typo of another."""
_SHOWN: Final = 5
"""Most problems that one error names."""
_OF_OTHER_TOOLS: Final = {"lr": "learning_rate"}
"""What other tools call an option that has another name here."""


_NEEDS: Final = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "needs a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "needs a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "needs true or false"),
}
"""By pydantic's kinds of errors."""


@dataclass(frozen=True, kw_only=True)
class FieldError:
    """An error of a pydantic validation."""

    location: Location
    kind: str
    message: str
    value: Any

    @classmethod
    def first_in(cls, error: ValidationError) -> FieldError:
        return next(cls.all_in(error))

    @classmethod
    def all_in(cls, error: ValidationError) -> Iterator[FieldError]:
        for found in error.errors():
            message = _NEEDS.get(found["type"]) or found["msg"].removeprefix("Value error, ")
            location = tuple(map(str, found["loc"]))
            yield cls(location=location, kind=found["type"], message=message, value=found["input"])

    @property
    def path(self) -> str:
        return ".".join(self.location)

    @property
    def clause(self) -> str:
        """The message in lower case, to follow a colon."""
        return f"{self.message[0].lower()}{self.message[1:]}"

    def __str__(self) -> str:
        return f"{self.path}: {self.clause}" if self.location else self.message


def validate_model(
    model: type[ModelT],
    given: Tree,
    *,
    options: Sequence[Option],
    sources: Mapping[Location, str],
    problems: Sequence[str] = (),
) -> ModelT:
    """Validates values whose origins are in `sources`; `problems` are what is wrong besides them.

    Raises:
        ConfigurationError: one line that names the sources of the values at fault.
    """
    found = list(problems)
    try:
        validated = model.model_validate(given)
    except ValidationError as error:
        found += _option_messages(error, options, sources)
        if not found:
            found.append(_with_sources(FieldError.first_in(error).message, model, given, sources))
    except ConfigurationError as error:
        if not found:  # options that do not go together, perhaps since one of them could not be read
            found.append(_with_sources(str(error), model, given, sources))
    else:
        if not found:
            return validated
    raise ConfigurationError(_listed(found))


def _listed(problems: Sequence[str]) -> str:
    more = len(problems) - _SHOWN
    return "; also ".join(problems[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def did_you_mean(name: str, known: Iterable[str], *, most: int = 1, prefix: str = "") -> str:
    """Returns `; did you mean 'this'?` to end a message with, or nothing if no known name is close."""
    return suggestion(similar_names(name, known, most=most, prefix=prefix))


def similar_names(name: str, known: Iterable[str], *, most: int = 1, prefix: str = "") -> list[str]:
    """Returns the known names that are close, the closest first.

    Close is what other tools call `name`, a typo of it, and a name of which it is a part: `--epochs` of
    `--local-epochs`. Two swapped letters are a typo however short the name is. A prefix that all names share is left
    out of the comparison, since it makes any two of them similar.
    """
    stems = {full.removeprefix(prefix): full for full in known}
    given = name.removeprefix(prefix)
    ours = _OF_OTHER_TOOLS.get(_last_part(given))
    close = [stem for stem in stems if _last_part(stem) == ours] or get_close_matches(
        given, stems, n=most, cutoff=_TYPO_SIMILARITY
    )
    close = close or [stem for stem in stems if _swaps_letters(given, stem)]
    return [stems[stem] for stem in close or sorted(_extensions(given, stems), key=len)][:most]


def _last_part(name: str) -> str:
    return name.rpartition(".")[2].replace("-", "_").lower()


def _swaps_letters(given: str, name: str) -> bool:
    """Whether two neighbouring letters are swapped, which makes short names too unlike for `get_close_matches`."""
    differing = [index for index, letters in enumerate(zip(given, name, strict=False)) if letters[0] != letters[1]]
    if len(given) != len(name) or len(differing) != 2:
        return False
    first, second = differing
    return second == first + 1 and given[first] == name[second] and given[second] == name[first]


def _extensions(given: str, stems: Iterable[str]) -> Iterator[str]:
    """Names that begin with a part of a name, or have it as a word."""
    if len(given) > 2:
        yield from (stem for stem in stems if stem.startswith(given) or given in re.split("[-_.]", stem))


def suggestion(names: Iterable[str]) -> str:
    listed = " or ".join(map(repr, names))
    return f"; did you mean {listed}?" if listed else ""


def _option_messages(error: ValidationError, options: Sequence[Option], sources: Mapping[Location, str]) -> list[str]:
    """Returns a message for each option that is at fault by itself: the first of those that pydantic has."""
    messages: dict[Location, str] = {}
    for found in FieldError.all_in(error):
        for option in options:
            if found.location[: len(option.location)] == option.location:
                messages.setdefault(option.location, _option_message(found, option, sources))
    return list(messages.values())


def _option_message(error: FieldError, option: Option, sources: Mapping[Location, str]) -> str:
    if error.kind == "missing":
        return f"{option.flag} is required"
    source = sources.get(option.location, option.flag)
    named = isinstance(error.value, str) and repr(error.value) in error.message
    shown = isinstance(error.value, str | int | float) and not named
    value = f" (got {error.value!r})" if shown else ""
    return f"{source}: {error.clause}{value}"


def _with_sources(message: str, model: type[BaseModel], given: Tree, sources: Mapping[Location, str]) -> str:
    """Puts the sources of the values at fault before a message that does not contain them yet."""
    remaining = {location: _message(model, without(given, location)) for location in sources}
    # with several errors, removing one value only uncovers the next error: a different message must suffice then
    cleared = [location for location, rest in remaining.items() if rest is None]
    at_fault = cleared or [location for location, rest in remaining.items() if rest != message]
    names = list(dict.fromkeys(sources[location] for location in at_fault))
    if all(name in message for name in names):
        return message
    return f"{' and '.join(names)}: {message}"


def _message(model: type[BaseModel], given: Tree) -> str | None:
    """Returns the first error of these values; None if they are valid."""
    try:
        model.model_validate(given)
    except ValidationError as error:
        return FieldError.first_in(error).message
    except ConfigurationError as error:
        return str(error)
    return None
