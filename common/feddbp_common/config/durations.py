"""Durations as people write them: 90, 1.5s, 250ms, 10m, 1h30m."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PIECE = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])")


def parse_duration(value: Any) -> Any:
    """Seconds as a number, or pieces with units; anything that is not text is left to pydantic."""
    if not isinstance(value, str):
        return value
    text = value.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        text += "s"
    pieces = _PIECE.findall(text)
    if not pieces or "".join(number + unit for number, unit in pieces) != text:
        raise ValueError(f"{value!r} is not a duration such as 90s, 10m or 1h30m")
    try:
        return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in pieces))
    except OverflowError:
        raise ValueError(f"{value!r} is too long") from None


def format_duration(duration: timedelta) -> str:
    """Exact, and fit to be read again by `parse_duration`."""
    return f"{duration.total_seconds():.6f}".rstrip("0").rstrip(".") + "s"


Duration = Annotated[timedelta, BeforeValidator(parse_duration), PlainSerializer(format_duration, when_used="json")]
