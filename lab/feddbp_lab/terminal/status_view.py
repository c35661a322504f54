"""The output of `feddbp status`: the run's phase, a row per client, and the latest incidents."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.errors import FedDBPError
from feddbp_common.humanize import client_names, human_seconds, id_ranges
from feddbp_lab.terminal.clients_table import Moment, ago, clients_table, late_joiners
from feddbp_lab.terminal.status_words import phase_text, totals_text

_SHOWN_INCIDENTS: Final = 5


class LiveStatusView:
    """The last status received: counts its deadline down, and shows since when the server has not answered."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._status: pb.RunStatus | None = None
        self._received = clock()
        self._error: FedDBPError | None = None
        self._first_run = ""

    def show(self, status: pb.RunStatus) -> None:
        self._status, self._received, self._error = status, self._clock(), None
        self._first_run = self._first_run or status.run_id

    def show_error(self, error: FedDBPError) -> None:
        self._error = error

    def __rich__(self) -> RenderableType:
        if self._status is None:
            return Text("" if self._error is None else no_answer(self._error, is_first=True), style="bold yellow")
        age = self._clock() - self._received
        status = pb.RunStatus()
        status.CopyFrom(self._status)
        if self._error is not None:
            # a server that was stopped counts nothing down, and gives the round its full deadline again
            status.ClearField("time_left")
            view = StatusView(status=status, now=self._clock())
            note = f"no answer for {human_seconds(age)}, reconnecting: {self._error}"
            return Group(view, Text(note, style="bold red"))
        if status.HasField("time_left"):
            left = status.time_left.ToTimedelta() - timedelta(seconds=age)
            status.time_left.FromTimedelta(max(left, timedelta(0)))
        view = StatusView(status=status, now=self._clock(), received=self._received)
        if status.run_id == self._first_run:
            return view
        return Group(view, Text(f"the server holds another run now; it was {self._first_run}", style="bold yellow"))


def no_answer(error: FedDBPError, *, is_first: bool) -> str:
    """What to say while a server is waited for; `is_first`: it has not answered yet."""
    return f"no answer yet, waiting: {error}" if is_first else f"no answer, reconnecting: {error}"


@dataclass(frozen=True, kw_only=True)
class StatusView:
    """A status, drawn to fit the terminal."""

    status: pb.RunStatus
    now: float
    """Wall-clock time from which "ago" is counted."""
    received: float | None = None
    """When the status was received; None if that is now."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        status = self.status
        heading = Text.assemble((status.method, "bold"), ("  run ", "dim"), status.run_id)
        if status.software_version:
            heading.append(f"  server {status.software_version}", style="dim")
        heading.overflow, heading.no_wrap = "ellipsis", True
        yield heading
        yield status_line(status)
        yield totals_text(status)
        yield from (Text(sentence, style="cyan") for sentence in status.privacy)
        if status.clients:
            yield Text()
            moment = Moment(now=self.now, received=self.now if self.received is None else self.received)
            yield clients_table(status, moment, width=options.max_width)
            late = late_joiners(status)
            if late is not None:
                yield late
        problems = [*absent_lines(status), *_refusals(status), *_incidents(status, self.now)]
        if problems:
            yield Text()
            yield from problems


def status_line(status: pb.RunStatus) -> Text:
    """Phase, round, missing clients, time left and reason in one line."""
    text = phase_text(status)
    waits = status.phase == pb.PHASE_WAITING
    if status.missing:
        verb = "missing" if waits else "waiting for"
        text.append(f"   {verb} {client_names(status.missing, _names_in(status))}", style="yellow")
    if status.HasField("time_left"):
        left = human_seconds(status.time_left.ToTimedelta().total_seconds())
        text.append(f"   begins in {left}" if waits else f"   {left} until the deadline", style="dim")
    if status.training_alone:
        text.append("   training alone: no other client takes part", style="bold red")
    if status.reason:
        text.append(f"   {status.reason}")
    return text


def _names_in(status: pb.RunStatus) -> Callable[[int], str]:
    names = {client.client_id: client.capabilities.name for client in status.clients}
    return lambda client_id: names.get(client_id, "")


def absent_lines(status: pb.RunStatus) -> Iterable[Text]:
    """Clients that have no row, or may not take part."""
    if status.never_joined and status.phase != pb.PHASE_WAITING:
        yield Text.assemble(("never joined: ", "dim"), (id_ranges(status.never_joined), "yellow"))
    if status.blocked:
        yield Text.assemble(("blocked: ", "dim"), (client_names(status.blocked, _names_in(status)), "red"))


def _refusals(status: pb.RunStatus) -> Iterable[Text]:
    if status.refusals:
        counts = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in sorted(status.refusals.items()))
        yield Text.assemble(("refused since the server started: ", "dim"), counts)


def _incidents(status: pb.RunStatus, now: float) -> Iterable[Text]:
    for incident in list(status.incidents)[-_SHOWN_INCIDENTS:]:
        client = f"client {incident.client_id}: " if incident.HasField("client_id") else ""
        when = ago(now - incident.at.ToNanoseconds() / 1e9)
        yield Text.assemble((f"{when}: ", "dim"), (f"{client}{incident.message}", "yellow"))
