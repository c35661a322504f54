"""Numbers, units and tables as text."""

from __future__ import annotations

from rich import box
from rich.table import Table

NO_VALUE = "–"
"""Shown where there is no value yet."""


def human_bytes(count: float) -> str:
    """Decimal units, three digits: what network people mean by a megabyte."""
    for unit in ("B", "kB", "MB", "GB"):
        # 999.5 would be rounded to 1000
        if count < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.95 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def human_seconds(seconds: float) -> str:
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, left = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {left:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def percent(share: float | None) -> str:
    return NO_VALUE if share is None else f"{100 * share:.1f} %"


def id_ranges(ids: list[int]) -> str:
    """Ids with runs of neighbours drawn together: 0-3, 7."""
    pieces: list[list[int]] = []
    for number in sorted(ids):
        if pieces and number == pieces[-1][-1] + 1:
            pieces[-1].append(number)
        else:
            pieces.append([number])
    return ", ".join(str(piece[0]) if len(piece) == 1 else f"{piece[0]}-{piece[-1]}" for piece in pieces)


_TICKS = "▁▂▃▄▅▆▇█"


def sparkline(shares: list[float], width: int) -> str:
    """The newest `width` values between 0 and 1, one character each."""
    return "".join(_TICKS[min(int(share * len(_TICKS)), len(_TICKS) - 1)] for share in shares[-width:])


def plain_table(*columns: str, title: str | None = None) -> Table:
    """Columns that are more than a name are added to it afterwards."""
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
