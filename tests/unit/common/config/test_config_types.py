from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ByteSize, TypeAdapter, ValidationError

from feddbp_common.config.types import Duration, format_duration, format_size, parse_duration


class Nap(BaseModel):
    length: Duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("1.5", 1.5),
        ("90s", 90),
        ("1.5s", 1.5),
        ("250ms", 0.25),
        ("10m", 600),
        ("1h30m", 5400),
        ("1d2h3m4s5ms", 93784.005),
        ("2d", 172_800),
        ("2min", 120),
        ("90sec", 90),
        ("1hour30minutes", 5400),
        ("1day2hrs3mins4seconds", 93784),
        (" 10M ", 600),
        ("0", 0),
    ],
)
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert Nap(length=text).length == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "soon", "-5s", "5 s", "5x", "s", "1h 30m", "1,5s", "ms5", "1..5s", "5ss", "1e3", "2minu", "2minmin"]
)
def test_an_invalid_duration_is_refused_with_an_example(text: str) -> None:
    units = "the units are ms, s or sec, m or min, h or hours, d or days"
    with pytest.raises(ValidationError, match=f"is not a duration such as 90s, 10m or 1h30m; {units}"):
        Nap(length=text)


def test_a_duration_too_long_for_timedelta_is_a_validation_error() -> None:
    with pytest.raises(ValidationError):
        Nap(length="99999999999d")


def test_numbers_are_seconds() -> None:
    assert Nap(length=90).length == timedelta(seconds=90)
    assert parse_duration(timedelta(hours=1)) == timedelta(hours=1)


@settings(max_examples=150, deadline=None)
@given(st.timedeltas(timedelta(0), timedelta(days=400)))
@example(timedelta(days=30))
@example(timedelta(seconds=1_234_567))
@example(timedelta(milliseconds=1_000_001))
@example(timedelta(microseconds=1))
def test_a_formatted_duration_parses_to_the_same_value(duration: timedelta) -> None:
    printed = Nap(length=duration).model_dump(mode="json")["length"]
    assert printed == format_duration(duration)
    assert parse_duration(printed) == duration


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1999, "1999 B"),
        (2000, "2 kB"),
        (1 << 20, "1 MiB"),
        (64 << 20, "64 MiB"),
        (10_000_000, "10 MB"),
        (20_000_000_000, "20 GB"),
        (3 << 30, "3 GiB"),
    ],
)
def test_a_size_is_shown_in_its_largest_whole_unit_and_read_again(size: int, text: str) -> None:
    assert format_size(size) == text
    assert TypeAdapter(ByteSize).validate_python(text) == size
