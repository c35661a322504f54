"""Base types of configuration models: a frozen model, what its fields declare, durations, lists, references."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer
from pydantic.fields import FieldInfo

from feddbp_common.errors import ConfigurationError

UINT32_MAX: Final = 2**32 - 1
"""Largest value of the protocol's integer fields."""


class FrozenModel(BaseModel):
    """A model that is immutable and admits neither unknown fields nor numbers that are not finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def field_extra(field: FieldInfo) -> Mapping[str, Any]:
    """Returns what a field declares beyond its type, default and description, as `json_schema_extra`.

    `flag`, `aliases` and `metavar` replace what name and type give on the command line, `hidden` leaves the field out;
    `proto` and `zero_is_none` are for the conversion to protobuf; `added_in` is for its identity.
    """
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


_SPELLINGS: Final = {
    0.001: ("ms",),
    1.0: ("s", "sec", "secs", "second", "seconds"),
    60.0: ("m", "min", "mins", "minute", "minutes"),
    3600.0: ("h", "hr", "hrs", "hour", "hours"),
    86400.0: ("d", "day", "days"),
}
_UNITS: Final = {name: seconds for seconds, names in _SPELLINGS.items() for name in names}
_PIECE: Final = re.compile(rf"(\d+(?:\.\d+)?)({'|'.join(sorted(_UNITS, key=len, reverse=True))})")


def parse_duration(value: Any) -> Any:
    """Parses seconds such as `90` or numbers with units such as `1h30m`; leaves what is not a string to pydantic."""
    if not isinstance(value, str):
        return value
    text = value.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        text += "s"
    pieces = _PIECE.findall(text)
    if not pieces or "".join(number + unit for number, unit in pieces) != text:
        units = "ms, s or sec, m or min, h or hours, d or days"
        raise ValueError(f"{value!r} is not a duration such as 90s, 10m or 1h30m; the units are {units}")
    try:
        return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in pieces))
    except OverflowError:
        raise ValueError(f"{value!r} is too long") from None


def format_duration(duration: timedelta) -> str:
    """Formats a duration exactly, as `parse_duration` reads it."""
    return f"{duration.total_seconds():.6f}".rstrip("0").rstrip(".") + "s"


_SIZES: Final = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def format_size(size: int) -> str:
    """Formats a number of bytes exactly, in the largest unit of which it is a multiple: 64 MiB, 20 GB."""
    whole = [(size // unit, name) for name, unit in _SIZES.items() if size and size % unit == 0]
    count, name = min(whole, default=(size, "B"))
    return f"{count} {name}"


Duration = Annotated[timedelta, BeforeValidator(parse_duration), PlainSerializer(format_duration, when_used="json")]


def split_at_commas(value: Any) -> Any:
    return tuple(filter(None, (item.strip() for item in value.split(",")))) if isinstance(value, str) else value


CommaSeparated = Annotated[tuple[str, ...], BeforeValidator(split_at_commas)]
"""Texts, or one text that lists them."""


REFERENCE_MARK: Final = ":"
"""Tells a reference to a function of a user's own, `package.module:function`, from the name of something built in."""


def split_reference(
    reference: str, *, what: str, error_type: type[ConfigurationError] = ConfigurationError
) -> tuple[str, str]:
    """Returns the names of the module and of the function, which is not imported.

    Errors begin with `what`, the option or setting.
    """
    module, _, function = reference.partition(REFERENCE_MARK)
    if not (is_module_name(module) and function.isidentifier()):
        raise error_type(f"{what} {reference}: is not of the form package.module:function")
    return module, function


def is_module_name(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def parse_ids(text: str) -> tuple[int, ...]:
    """Parses a list of numbers and ranges, such as `0,3,5-7`, into sorted client ids."""
    ids: set[int] = set()
    for piece in text.split(","):
        first, dash, last = piece.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ConfigurationError(f"--ids: {text!r} is not a list such as 0-19 or 0,3,5-7")
        low, high = int(first), int(last) if dash else int(first)
        if high < low or high - low > 10_000:
            raise ConfigurationError(f"--ids: {piece.strip()!r} is not a range of clients")
        ids.update(range(low, high + 1))
    return tuple(sorted(ids))


def parse_numbers(value: Any, flag: str) -> Any:
    """Parses a list such as `0,1,2`, in its order; leaves what is not a string to pydantic."""
    if not isinstance(value, str):
        return value
    pieces = [piece.strip() for piece in value.split(",")]
    if not all(piece.isdecimal() for piece in pieces):
        raise ConfigurationError(f"{flag}: {value!r} is not a list of numbers such as 0,1,2")
    return tuple(map(int, pieces))
