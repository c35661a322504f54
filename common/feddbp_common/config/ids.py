"""Client ids as people write them: 3, 0-19, or 0,3,5-7."""

from __future__ import annotations

from feddbp_common.errors import ConfigurationError


def parse_ids(text: str) -> tuple[int, ...]:
    """Client ids from a list of numbers and ranges."""
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
