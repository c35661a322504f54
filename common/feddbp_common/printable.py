"""Makes text from another party printable: no sink shows it before it has passed through here.

Sinks are log lines, terminals, pages and pictures. Each has a syntax of its own on top, such as rich's markup or
matplotlib's mathtext, which it switches off or escapes; what is common to all of them is done here.
"""

from __future__ import annotations

from typing import Final

LONGEST_TEXT: Final = 500
"""Characters of a reason, a cause or a name."""
_CUT: Final = "..."


def printable(text: str, limit: int = LONGEST_TEXT) -> str:
    r"""The text on one line of at most `limit` characters, with every character visible.

    Control characters, line breaks, escape sequences, characters that change the direction of what follows, and
    halves of surrogate pairs appear as escapes such as `\n` and `\x1b`.
    """
    if len(text) <= limit and text.isprintable():
        return text
    shown: list[str] = []
    length = 0
    for letter in text:
        piece = letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        length += len(piece)
        if length > limit:
            return "".join(shown)[: max(limit - len(_CUT), 0)] + _CUT[:limit]
        shown.append(piece)
    return "".join(shown)


def printable_lines(text: str, limit: int = LONGEST_TEXT) -> str:
    """The same for each line of a text whose line breaks are its own, such as a traceback."""
    return "\n".join(printable(line, limit) for line in text.split("\n"))
