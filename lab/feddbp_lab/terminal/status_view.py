"""The output of `feddbp status`: the run's phase, a row per client, and the latest incidents."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.errors import FedDBPError
from feddbp_common.humanize import NO_VALUE, client_names, human_bytes, human_seconds, percent
from feddbp_lab.terminal.format import plain_table
from feddbp_lab.terminal.status_words import activity_text, phase_text, totals_text, trained_accuracy

_SHOWN_INCIDENTS: Final = 5
_WIDE: Final = 110
"""Columns of a terminal from which the device is shown, and bytes up and down apart."""


class LiveStatusView:
    """The last status received; counts its deadline down, and shows since when the server has not answered."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._status: pb.RunStatus | None = None
        self._received = clock()
        self._error: FedDBPError | None = None

    def show(self, status: pb.RunStatus) -> None:
        self._status, self._received, self._error = status, self._clock(), None

    def show_error(self, error: FedDBPError) -> None:
        self._error = error

    def __rich__(self) -> RenderableType:
        if self._status is None:
            return Text()
        age = self._clock() - self._received
        status = pb.RunStatus()
        status.CopyFrom(self._status)
        if status.HasField("time_left"):
            left = status.time_left.ToTimedelta() - timedelta(seconds=age)
            status.time_left.FromTimedelta(max(left, timedelta(0)))
        # "last seen" as of the status: how long ago it was since then is not known here
        view = StatusView(status=status, now=self._received)
        if self._error is None:
            return view
        return Group(view, Text(f"no answer for {human_seconds(age)}, reconnecting: {self._error}", style="bold red"))


@dataclass(frozen=True, kw_only=True)
class StatusView:
    """A status, drawn to fit the terminal."""

    status: pb.RunStatus
    now: float
    """Wall-clock time from which "ago" is counted."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        status = self.status
        heading = Text.assemble((status.method, "bold"), ("  run ", "dim"), status.run_id)
        if status.software_version:
            heading.append(f"  server {status.software_version}", style="dim")
        heading.overflow, heading.no_wrap = "ellipsis", True
        yield heading
        yield status_line(status)
        yield totals_text(status)
        if status.clients:
            yield Text()
            yield _clients_table(status, self.now, wide=options.max_width >= _WIDE)
        problems = [*_refusals(status), *_incidents(status, self.now)]
        if problems:
            yield Text()
            yield from problems


def status_line(status: pb.RunStatus) -> Text:
    """Phase, round, missing clients, time left and reason in one line."""
    text = phase_text(status)
    if status.missing:
        text.append(f"   waiting for {client_names(status.missing)}", style="yellow")
    if status.HasField("time_left"):
        text.append(
            f"   {human_seconds(status.time_left.ToTimedelta().total_seconds())} until the deadline", style="dim"
        )
    if status.reason:
        text.append(f"   {status.reason}")
    return text


def _clients_table(status: pb.RunStatus, now: float, *, wide: bool) -> Table:
    table = plain_table()
    table.add_column("id", justify="right", style="bold", no_wrap=True)
    table.add_column("architecture", no_wrap=True, overflow="ellipsis")
    if wide:
        table.add_column("device", no_wrap=True)
    versions = _versions_differ(status)
    if versions:
        table.add_column("version", no_wrap=True)
    table.add_column("activity", no_wrap=True)
    table.add_column("last seen", justify="right", no_wrap=True)
    table.add_column("accuracy", justify="right", style="bold", no_wrap=True)
    table.add_column("trained", justify="right", no_wrap=True)
    for traffic in ("up", "down") if wide else ("bytes",):
        table.add_column(traffic, justify="right", no_wrap=True)
    for client in status.clients:
        table.add_row(*_client_row(client, status, now, wide=wide, versions=versions))
    return table


def _versions_differ(status: pb.RunStatus) -> bool:
    return any(client.capabilities.software_version != status.software_version for client in status.clients)


def _client_row(
    client: pb.ClientStatus, status: pb.RunStatus, now: float, *, wide: bool, versions: bool
) -> Iterable[Text | str]:
    yield str(client.client_id)
    # as Text: what a client reports about itself must not be parsed as markup
    yield Text(client.capabilities.architecture or NO_VALUE)
    if wide:
        yield Text(client.capabilities.device or NO_VALUE)
    if versions:
        yield Text(client.capabilities.software_version or NO_VALUE)
    yield activity_text(client, status.phase)
    yield _ago(now - client.last_seen.ToNanoseconds() / 1e9)
    yield percent(trained_accuracy(client))
    yield human_seconds(client.metrics.seconds.train) if client.metrics.seconds.train else NO_VALUE
    counts = (client.bytes_up, client.bytes_down)
    yield from map(human_bytes, counts if wide else (sum(counts),))


def _ago(seconds: float) -> str:
    return "now" if seconds < 1 else f"{human_seconds(seconds)} ago"


def _refusals(status: pb.RunStatus) -> Iterable[Text]:
    if status.refusals:
        counts = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in sorted(status.refusals.items()))
        yield Text.assemble(("refused since the server started: ", "dim"), counts)


def _incidents(status: pb.RunStatus, now: float) -> Iterable[Text]:
    for incident in list(status.incidents)[-_SHOWN_INCIDENTS:]:
        client = f"client {incident.client_id}: " if incident.HasField("client_id") else ""
        ago = _ago(now - incident.at.ToNanoseconds() / 1e9)
        yield Text.assemble((f"{ago}: ", "dim"), (f"{client}{incident.message}", "yellow"))
