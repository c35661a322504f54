"""Makes text from another party printable: no sink shows it before it has passed through here.

Sinks are log lines, terminals, pages and pictures. Each has a syntax of its own on top, such as rich's markup or
matplotlib's mathtext, which it switches off or escapes; what is common to all of them is done here.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

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


def printable_values(value: Any) -> Any:
    """A value that was read from JSON, with every text in it made printable, keys too."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [printable_values(item) for item in value]
    if isinstance(value, dict):
        return {printable(key): printable_values(item) for key, item in value.items()}
    return value


def make_printable(message: Message) -> None:
    """Makes every text in a message printable, at any depth."""
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _make_map_printable(value, has_messages=field.message_type.fields_by_name["value"].message_type is not None)
        elif field.message_type is not None:
            for part in value if field.is_repeated else (value,):
                make_printable(part)
        elif field.type == FieldDescriptor.TYPE_STRING and field.is_repeated:
            value[:] = map(printable, value)
        elif field.type == FieldDescriptor.TYPE_STRING:
            setattr(message, field.name, printable(value))


def _make_map_printable(entries: Any, *, has_messages: bool) -> None:
    if has_messages:
        for part in entries.values():
            make_printable(part)
        return
    items = [(printable_values(key), printable_values(value)) for key, value in entries.items()]
    entries.clear()
    entries.update(items)
