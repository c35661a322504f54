"""The terminal display of a run that `feddbp demo` started: progress, time left, and a row per client."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.humanize import NO_VALUE, human_seconds, percent, short_device
from feddbp_lab.terminal.format import plain_table, sparkline
from feddbp_lab.terminal.status_words import (
    activity,
    activity_text,
    phase_text,
    rounds_done,
    totals_text,
    trained_accuracy,
)

_REFRESH_SECONDS: Final = 0.2
_WIDE: Final = 124
"""Columns of a terminal from which parameters, device and trend are shown."""
_LINES_AROUND_TABLE: Final = 8
"""The lines above the table, its own head and frame, and one for the cursor."""
_ACTIVITY_WIDTH: Final = len("training 10/10 epochs")
"""Reserved from the start: columns that move with every change are hard to read."""
_TREND_WIDTH: Final = 24
_TREND_LENGTH: Final = 32
"""Accuracies kept for each client."""
_ACTIVE_PHASES: Final = (pb.PHASE_COLLECTING, pb.PHASE_AGGREGATING, pb.PHASE_EVALUATING, pb.PHASE_FINISHED)
_ROUNDS_FOR_ESTIMATE: Final = 0.2
"""Rounds that must be done before the time left is estimated from their pace."""


@dataclass(kw_only=True)
class LiveDisplay:
    """Shows the newest status on the terminal, and clears it at the end, when the report is printed instead."""

    console: Console
    title: str
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._history = RunHistory()
        self._view: RenderableType = Text.assemble((self.title, "bold"), "\nstarting the server and the clients …")
        # auto_refresh would draw from a thread of rich, while the history changes in this one
        self._live = Live(get_renderable=lambda: self._view, console=self.console, auto_refresh=False, transient=True)
        self._refreshing: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._live.start()
        self._refreshing = asyncio.create_task(self._refresh())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
        self._live.stop()

    def show(self, status: pb.RunStatus) -> None:
        self._history.update(status, self.clock())
        self._view = LiveView(status=status, history=self._history, title=self.title, clock=self.clock)

    async def _refresh(self) -> None:
        """Draws at a fixed rate: elapsed time changes between statuses, and statuses may arrive faster than that."""
        while True:
            self._live.refresh()
            await asyncio.sleep(_REFRESH_SECONDS)


class RunHistory:
    """What the statuses so far show that a single one does not: when training began, and each client's trend."""

    def __init__(self) -> None:
        self._began: tuple[float, float] | None = None
        """The time of the first status with an open round, and the rounds done in it."""
        self._newest: dict[int, int] = {}
        self._trends: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_TREND_LENGTH))

    def update(self, status: pb.RunStatus, now: float) -> None:
        if self._began is None and status.phase in _ACTIVE_PHASES:
            self._began = now, rounds_done(status)
        for client in status.clients:
            accuracy = trained_accuracy(client)
            if accuracy is not None and client.metrics_round > self._newest.get(client.client_id, 0):
                self._newest[client.client_id] = client.metrics_round
                self._trends[client.client_id].append(accuracy)

    def trend(self, client_id: int) -> list[float]:
        """A client's accuracies since its first training, oldest first."""
        return list(self._trends.get(client_id, ()))

    def seconds(self, now: float) -> float:
        """Since the first round opened."""
        return now - self._began[0] if self._began else 0.0

    def seconds_left(self, status: pb.RunStatus, now: float) -> float | None:
        """An estimate from the pace so far; None before enough of a round is done."""
        if self._began is None or status.phase not in (pb.PHASE_COLLECTING, pb.PHASE_AGGREGATING):
            return None
        done = rounds_done(status)
        seen = done - self._began[1]
        return self.seconds(now) / seen * (status.rounds - done) if seen >= _ROUNDS_FOR_ESTIMATE else None


@dataclass(frozen=True, kw_only=True)
class LiveView:
    """A status with the history before it, drawn to fit the terminal."""

    status: pb.RunStatus
    history: RunHistory
    title: str
    clock: Callable[[], float]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.title, style="bold", overflow="ellipsis", no_wrap=True)
        yield self._progress_bar()
        yield totals_text(self.status)
        yield Text()
        if not self.status.clients:
            yield Text("The clients are loading their data and models.", style="dim")
            return
        rows = max(console.height - _LINES_AROUND_TABLE, 3)
        yield _clients_table(self.status, self.history, wide=options.max_width >= _WIDE, rows=rows)

    def _progress_bar(self) -> Table:
        status, now = self.status, self.clock()
        bar = Table.grid(padding=(0, 1), expand=True)
        for column in ({}, {"ratio": 1}, {"justify": "right"}):
            bar.add_column(no_wrap=True, **column)
        bar.add_row(
            phase_text(status),
            ProgressBar(total=max(status.rounds, 1), completed=rounds_done(status)),
            Text(_time_text(self.history.seconds(now), self.history.seconds_left(status, now)), style="dim"),
        )
        return bar


def _time_text(elapsed: float, left: float | None) -> str:
    return human_seconds(elapsed) if left is None else f"{human_seconds(elapsed)}, about {human_seconds(left)} left"


def _clients_table(status: pb.RunStatus, history: RunHistory, *, wide: bool, rows: int) -> Table:
    table = plain_table()
    table.add_column("id", justify="right", style="bold")
    table.add_column("architecture", no_wrap=True, overflow="ellipsis")
    if wide:
        table.add_column("parameters", justify="right")
        table.add_column("device")
    table.add_column("activity", no_wrap=True, min_width=_ACTIVITY_WIDTH)
    table.add_column("classes", justify="right")
    table.add_column("samples", justify="right")
    table.add_column("accuracy", justify="right", style="bold", min_width=8)
    if wide:
        table.add_column("since round 1", no_wrap=True, min_width=_TREND_WIDTH)
    shown = list(status.clients)[: rows if len(status.clients) <= rows else rows - 1]
    for client in shown:
        table.add_row(*_client_row(client, status, history, wide=wide))
    hidden = list(status.clients)[len(shown) :]
    if hidden:
        table.add_row("…", *[""] * (3 if wide else 1), _count_activities(hidden, status))
    return table


def _client_row(client: pb.ClientStatus, status: pb.RunStatus, history: RunHistory, *, wide: bool) -> list[Text | str]:
    # as Text: what a client reports about itself must not be parsed as markup
    model: list[Text | str] = [Text(client.capabilities.architecture or NO_VALUE)]
    if wide:
        model += [f"{client.capabilities.parameters:,}", Text(short_device(client.capabilities.device) or NO_VALUE)]
    trend = [sparkline(history.trend(client.client_id), _TREND_WIDTH)] if wide else []
    return [
        str(client.client_id),
        *model,
        activity_text(client, status.phase),
        str(client.classes_held or NO_VALUE),
        str(client.train_samples or NO_VALUE),
        percent(trained_accuracy(client)),
        *trend,
    ]


def _count_activities(clients: list[pb.ClientStatus], status: pb.RunStatus) -> Text:
    counts = Counter(activity(client, status.phase)[0] for client in clients)
    return Text(f"{len(clients)} more: " + ", ".join(f"{count} {word}" for word, count in counts.items()), style="dim")
