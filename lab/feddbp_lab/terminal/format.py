"""Numbers, units and tables as text."""

from __future__ import annotations

from rich import box
from rich.table import Table

NO_VALUE = "–"
_BARS = "▁▂▃▄▅▆▇█"


def human_bytes(count: float) -> str:
    """Decimal units, as network traffic is counted, with two or three digits."""
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
    """Ids with consecutive ones as a range: 0-3, 7."""
    ranges: list[list[int]] = []
    for number in sorted(ids):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    return ", ".join(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}" for numbers in ranges)


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
