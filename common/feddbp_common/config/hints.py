"""What may have been meant by a name nobody knows."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str], *, most: int = 1) -> str:
    """The end of a complaint, `; did you mean 'this'?`, or nothing if no known name is near."""
    return suggestion(get_close_matches(name, list(known), n=most))


def suggestion(names: Iterable[str]) -> str:
    listed = " or ".join(map(repr, names))
    return f"; did you mean {listed}?" if listed else ""
