"""Tables and small charts as text."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

_BARS = "▁▂▃▄▅▆▇█"
_UNWRAPPED: Final = 10_000


def terminal(**options: Any) -> Console:
    """A console that shows text as it is: square brackets in a client's name are no markup, colons no emoji."""
    return Console(markup=False, emoji=False, **options)


def print_whole(renderable: RenderableType, *, soft_wrap: bool = False) -> None:
    """Prints to the terminal; into a file or pipe without padding lines, or wrapping them unless COLUMNS is given.

    With `soft_wrap` the terminal itself wraps lines, which can be copied as one then.
    """
    console = terminal()
    if console.is_terminal:
        console.print(renderable, soft_wrap=soft_wrap)
        return
    paper = console if "COLUMNS" in os.environ else terminal(width=_UNWRAPPED)
    with paper.capture() as captured:
        paper.print(renderable, soft_wrap=soft_wrap)
    print(*(line.rstrip() for line in captured.get().splitlines()), sep="\n")


def sparkline(shares: list[float], width: int) -> str:
    """The newest `width` values between 0 and 1, one character each."""
    return "".join(_BARS[min(int(share * len(_BARS)), len(_BARS) - 1)] for share in shares[-width:])


def plain_table(*columns: str, title: str | None = None) -> Table:
    """An empty table in the style of all our tables; columns with options are added to it by the caller."""
    table = Table(
        title=title,
        title_style="bold",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        pad_edge=False,
        show_edge=False,
    )
    for column in columns:
        table.add_column(column)
    return table


def facts_table(rows: Iterable[tuple[str, Text | str]]) -> Table:
    """A name and a text in each row; long texts are folded."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(name, text if isinstance(text, Text) else Text(text))
    return table
