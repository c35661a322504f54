"""Tables as commands print them: a line below the heads and no frame."""

from __future__ import annotations

from rich import box
from rich.table import Table


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
