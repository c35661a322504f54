"""The clients of a run as a table that fits the terminal: narrow ones leave out what matters least."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from rich.table import Table
from rich.text import Text

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.humanize import NO_VALUE, address_text, human_bytes, human_seconds, percent, short_device
from feddbp_lab.terminal.format import plain_table
from feddbp_lab.terminal.status_words import activity_text, trained_accuracy

_ABSENT: Final = (pb.CLIENT_ACTIVITY_AWAY, pb.CLIENT_ACTIVITY_LEFT, pb.CLIENT_ACTIVITY_BLOCKED)
_ANY_WIDTH: Final = 1_000_000
_SHOWN_LATE: Final = 5
_WITH_CARDS: Final = 180
"""Columns of a terminal from which a device is shown with the name of its card."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """When a status is shown, and when it was received, in wall-clock time."""

    now: float
    received: float

    def last_seen(self, client: pb.ClientStatus) -> str:
        """Time since the last sign of life: up to the status for connected clients, up to now for absent ones."""
        asked = self.now if client.activity in _ABSENT else self.received
        return ago(asked - client.last_seen.ToNanoseconds() / 1e9)


@dataclass(frozen=True, kw_only=True)
class _Column:
    """A column of terminals of some width; its cell is made of a client, the run's status and the moment."""

    title: str
    cell: Callable[[pb.ClientStatus, pb.RunStatus, Moment], Text | str]
    justify: Literal["left", "right"] = "right"
    widths: tuple[int, int] = (0, _ANY_WIDTH)

    def is_shown(self, width: int) -> bool:
        narrowest, widest = self.widths
        return narrowest <= width <= widest


# as Text: what a client reports about itself must not be parsed as markup
_VERSION: Final = _Column(
    title="version",
    cell=lambda client, *_: Text(client.capabilities.software_version or NO_VALUE),
    justify="left",
    widths=(130, _ANY_WIDTH),
)
_NAME: Final = _Column(
    title="name",
    cell=lambda client, *_: Text(client.capabilities.name or NO_VALUE),
    justify="left",
)
_COLUMNS: Final = (
    _Column(title="id", cell=lambda client, *_: Text(str(client.client_id), style="bold")),
    _NAME,
    _Column(
        title="architecture",
        cell=lambda client, *_: Text(client.capabilities.architecture or NO_VALUE),
        justify="left",
        widths=(72, _ANY_WIDTH),
    ),
    _Column(
        title="device",
        cell=lambda client, *_: Text(short_device(client.capabilities.device) or NO_VALUE),
        justify="left",
        widths=(110, _WITH_CARDS - 1),
    ),
    _Column(
        title="device",
        cell=lambda client, *_: Text(client.capabilities.device or NO_VALUE),
        justify="left",
        widths=(_WITH_CARDS, _ANY_WIDTH),
    ),
    _VERSION,
    _Column(
        title="address",
        cell=lambda client, *_: Text(address_text(client.peer) or NO_VALUE),
        justify="left",
        widths=(145, _ANY_WIDTH),
    ),
    _Column(title="activity", cell=lambda client, status, _: activity_text(client, status.phase), justify="left"),
    _Column(title="last seen", cell=lambda client, _, moment: moment.last_seen(client), widths=(54, _ANY_WIDTH)),
    _Column(title="accuracy", cell=lambda client, *_: Text(percent(trained_accuracy(client)), style="bold")),
    _Column(
        title="trained",
        cell=lambda client, *_: (
            human_seconds(client.metrics.seconds.train) if client.metrics.seconds.train else NO_VALUE
        ),
        widths=(93, _ANY_WIDTH),
    ),
    _Column(
        title="bytes",
        cell=lambda client, *_: human_bytes(client.bytes_up + client.bytes_down),
        widths=(82, 109),
    ),
    _Column(title="up", cell=lambda client, *_: human_bytes(client.bytes_up), widths=(110, _ANY_WIDTH)),
    _Column(title="down", cell=lambda client, *_: human_bytes(client.bytes_down), widths=(110, _ANY_WIDTH)),
)


def clients_table(status: pb.RunStatus, moment: Moment, *, width: int) -> Table:
    columns = [
        column
        for column in _COLUMNS
        if column is not _NAME or any(client.capabilities.name for client in status.clients)
        if column.is_shown(width) or (column is _VERSION and width >= 82 and _versions_differ(status))
    ]
    table = plain_table()
    for column in columns:
        table.add_column(column.title, justify=column.justify, no_wrap=True, overflow="ellipsis")
    for client in status.clients:
        table.add_row(*(column.cell(client, status, moment) for column in columns))
    return table


def late_joiners(status: pb.RunStatus) -> Text | None:
    """Clients that have not trained since the first round, and since when they do; None if there are none."""
    late = [
        f"client {client.client_id} since round {client.first_round + 1}"
        for client in status.clients
        if client.first_round
    ]
    shown = [*late[:_SHOWN_LATE], *([f"{len(late) - _SHOWN_LATE} more"] if len(late) > _SHOWN_LATE else [])]
    return Text(f"trained later: {', '.join(shown)}", style="dim") if late else None


def ago(seconds: float) -> str:
    return "now" if seconds < 1 else f"{human_seconds(seconds)} ago"


def _versions_differ(status: pb.RunStatus) -> bool:
    return any(client.capabilities.software_version != status.software_version for client in status.clients)
