"""A run's status as `feddbp status` prints it: where it stands, every client, and what went wrong of late."""

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
from feddbp_lab.terminal.format import NO_VALUE, human_bytes, human_seconds, id_ranges, percent, plain_table
from feddbp_lab.terminal.live import doing, facts, round_text, trained_accuracy

_SHOWN_INCIDENTS: Final = 5
_WIDE: Final = 110
"""Columns from which there is room for the device, and for bytes up and down apart."""


@dataclass(frozen=True, kw_only=True)
class StatusView:
    """Drawn to fit the terminal it is printed on."""

    status: pb.RunStatus
    now: float
    """Wall-clock time from which "ago" is counted."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        status = self.status
        run = Text(status.run_id)
        yield Text.assemble((status.method, "bold"), ("  run ", "dim"), run, overflow="ellipsis", no_wrap=True)
        yield status_line(status)
        yield facts(status)
        if status.clients:
            yield Text()
            yield _clients(status, self.now, wide=options.max_width >= _WIDE)
        troubles = [*_refusals(status), *_incidents(status, self.now)]
        if troubles:
            yield Text()
            yield from troubles


def status_line(status: pb.RunStatus) -> Text:
    """Phase, round, and whom or what it waits for, in one line."""
    text = round_text(status)
    if status.missing:
        text.append(f"   waiting for {_named(list(status.missing))}", style="yellow")
    if status.HasField("time_left"):
        text.append(
            f"   {human_seconds(status.time_left.ToTimedelta().total_seconds())} until the deadline", style="dim"
        )
    if status.reason:
        text.append(f"   {status.reason}")
    return text


def _named(ids: list[int]) -> str:
    return f"client {ids[0]}" if len(ids) == 1 else f"clients {id_ranges(ids)}"


def _clients(status: pb.RunStatus, now: float, *, wide: bool) -> Table:
    table = plain_table()
    table.add_column("id", justify="right", style="bold", no_wrap=True)
    table.add_column("architecture", no_wrap=True, overflow="ellipsis")
    if wide:
        table.add_column("device", no_wrap=True)
    table.add_column("doing", no_wrap=True)
    table.add_column("last seen", justify="right", no_wrap=True)
    table.add_column("accuracy", justify="right", style="bold", no_wrap=True)
    table.add_column("trained", justify="right", no_wrap=True)
    for way in ("up", "down") if wide else ("bytes",):
        table.add_column(way, justify="right", no_wrap=True)
    for client in status.clients:
        table.add_row(*_row(client, status, now, wide=wide))
    return table


def _row(client: pb.ClientStatus, status: pb.RunStatus, now: float, *, wide: bool) -> Iterable[Text | str]:
    yield str(client.client_id)
    # as text: what a client says of itself is not to be taken for markup
    yield Text(client.capabilities.architecture or NO_VALUE)
    if wide:
        yield Text(client.capabilities.device or NO_VALUE)
    yield doing(client, status.phase)
    yield _ago(now - client.last_seen.ToNanoseconds() / 1e9)
    yield percent(trained_accuracy(client))
    yield human_seconds(client.metrics.seconds.train) if client.metrics.seconds.train else NO_VALUE
    counts = (client.bytes_up, client.bytes_down)
    yield from map(human_bytes, counts if wide else (sum(counts),))


def _ago(seconds: float) -> str:
    return "now" if seconds < 1 else f"{human_seconds(seconds)} ago"


def _refusals(status: pb.RunStatus) -> Iterable[Text]:
    if status.refusals:
        told = ", ".join(f"{times} {reason.replace('_', ' ')}" for reason, times in sorted(status.refusals.items()))
        yield Text.assemble(("refused since the server started: ", "dim"), told)


def _incidents(status: pb.RunStatus, now: float) -> Iterable[Text]:
    for incident in list(status.incidents)[-_SHOWN_INCIDENTS:]:
        who = f"client {incident.client_id}: " if incident.HasField("client_id") else ""
        ago = _ago(now - incident.at.ToNanoseconds() / 1e9)
        yield Text.assemble((f"{ago}: ", "dim"), (f"{who}{incident.message}", "yellow"))


class LiveStatusView:
    """What was heard last, and since when nothing is."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._status: pb.RunStatus | None = None
        self._heard = clock()
        self._trouble: FedDBPError | None = None

    def show(self, status: pb.RunStatus) -> None:
        self._status, self._heard, self._trouble = status, self._clock(), None

    def lose(self, trouble: FedDBPError) -> None:
        self._trouble = trouble

    def __rich__(self) -> RenderableType:
        if self._status is None:
            return Text()
        silent = self._clock() - self._heard
        status = pb.RunStatus()
        status.CopyFrom(self._status)
        if status.HasField("time_left"):
            left = status.time_left.ToTimedelta() - timedelta(seconds=silent)
            status.time_left.FromTimedelta(max(left, timedelta(0)))
        # as of when it was heard: clients that were there then have not been heard of since
        view = StatusView(status=status, now=self._heard)
        if self._trouble is None:
            return view
        told = f"no answer for {human_seconds(silent)}, trying again: {self._trouble}"
        return Group(view, Text(told, style="bold red"))
