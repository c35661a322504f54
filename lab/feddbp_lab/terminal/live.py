"""A run's status for a terminal: how far it is, and what every client is doing."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from feddbp.v1 import federation_pb2 as pb
from feddbp_lab.terminal.format import NO_VALUE, human_bytes, human_seconds, percent, plain_table, sparkline

TREND_LENGTH: Final = 32
"""Accuracies of a client that are remembered."""
_ACTIVE_PHASES: Final = (pb.PHASE_COLLECTING, pb.PHASE_AGGREGATING, pb.PHASE_EVALUATING, pb.PHASE_FINISHED)
_ENOUGH_TO_GO_BY: Final = 0.2
"""Rounds that must be done before their pace is worth anything."""


class RunHistory:
    """Collects statuses, each with the time it came."""

    def __init__(self) -> None:
        self._began: tuple[float, float] | None = None
        """When the run was first seen training, and how many rounds were done then."""
        self._newest: dict[int, int] = {}
        self._trends: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=TREND_LENGTH))

    def update(self, status: pb.RunStatus, now: float) -> None:
        if self._began is None and status.phase in _ACTIVE_PHASES:
            self._began = now, rounds_done(status)
        for client in status.clients:
            accuracy = trained_accuracy(client)
            if accuracy is not None and client.metrics_round > self._newest.get(client.client_id, 0):
                self._newest[client.client_id] = client.metrics_round
                self._trends[client.client_id].append(accuracy)

    def trend(self, client_id: int) -> list[float]:
        """A client's accuracies, oldest first, from its first training on."""
        return list(self._trends.get(client_id, ()))

    def seconds(self, now: float) -> float:
        """Since the first round opened."""
        return now - self._began[0] if self._began else 0.0

    def seconds_left(self, status: pb.RunStatus, now: float) -> float | None:
        """An estimate from the pace so far; None while there is too little to go by."""
        if self._began is None or status.phase not in (pb.PHASE_COLLECTING, pb.PHASE_AGGREGATING):
            return None
        done = rounds_done(status)
        seen = done - self._began[1]
        return self.seconds(now) / seen * (status.rounds - done) if seen >= _ENOUGH_TO_GO_BY else None


def rounds_done(status: pb.RunStatus) -> float:
    """Completed rounds, and the part of the open one that is done."""
    if status.phase == pb.PHASE_AGGREGATING:
        return status.round + 1.0
    if status.phase not in (pb.PHASE_COLLECTING, pb.PHASE_PAUSED):
        return float(status.round)
    parts = [part for part in map(_part_done, status.clients) if part is not None]
    return status.round + (sum(parts) / len(parts) if parts else 0.0)


def _part_done(client: pb.ClientStatus) -> float | None:
    if client.activity == pb.CLIENT_ACTIVITY_UPLOADED:
        return 1.0
    if client.activity != pb.CLIENT_ACTIVITY_TRAINING:
        return None
    return client.progress.epochs_done / client.progress.epochs if client.progress.epochs else 0.0


def trained_accuracy(client: pb.ClientStatus) -> float | None:
    """A client's newest accuracy; none before its first training, when a rule may have nothing to go by."""
    metrics = client.metrics
    if client.metrics_round == 0 or not metrics.test_samples:
        return None
    correct = next((entry.correct for entry in metrics.accuracies if entry.rule == metrics.inference), 0)
    return correct / metrics.test_samples


WIDE: Final = 100
"""Columns from which there is room for more about each client."""
_TREND_WIDTH: Final = 24
_DOING_WIDTH: Final = len("training 10/10 epochs")
"""Kept free from the start: columns that move with every word are hard to read."""
_TICK_SECONDS: Final = 0.2
_PHASES: Final = {
    pb.PHASE_WAITING: ("waiting for clients", "yellow"),
    pb.PHASE_COLLECTING: ("training", "cyan"),
    pb.PHASE_AGGREGATING: ("aggregating", "magenta"),
    pb.PHASE_EVALUATING: ("last evaluation", "cyan"),
    pb.PHASE_PAUSED: ("paused", "yellow"),
    pb.PHASE_FINISHED: ("finished", "green"),
    pb.PHASE_FAILED: ("failed", "red"),
    pb.PHASE_STOPPED: ("stopped", "red"),
}
_HELD: Final = {pb.PHASE_WAITING: "before", pb.PHASE_EVALUATING: "after"}
"""Where a pause holds the run, seen from the round it names; any other phase is in it."""


@dataclass(frozen=True, kw_only=True)
class LiveView:
    """A status, and what was learnt from those before it, drawn to fit the terminal it is printed on."""

    status: pb.RunStatus
    history: RunHistory
    title: str
    clock: Callable[[], float]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.title, style="bold", overflow="ellipsis", no_wrap=True)
        yield from self._progress()
        yield Text()
        if not self.status.clients:
            yield Text("The clients are loading their data and models.", style="dim")
            return
        # of the terminal's height: the lines above, those of the table itself and one for the cursor
        room = console.height - 8
        yield clients_table(self.status, self.history, width=options.max_width, rows=max(room, 3))

    def _progress(self) -> list[RenderableType]:
        status, now = self.status, self.clock()
        bar = Table.grid(padding=(0, 1), expand=True)
        for column in ({}, {"ratio": 1}, {"justify": "right"}):
            bar.add_column(no_wrap=True, **column)
        bar.add_row(
            round_text(status),
            ProgressBar(total=max(status.rounds, 1), completed=rounds_done(status)),
            Text(_time_text(self.history.seconds(now), self.history.seconds_left(status, now)), style="dim"),
        )
        return [bar, facts(status)]


def round_text(status: pb.RunStatus) -> Text:
    """The phase and the round, counted from 1 as people do."""
    word, style = _PHASES.get(status.phase, ("unknown", "red"))
    text = Text(word, style=f"bold {style}")
    if status.phase == pb.PHASE_WAITING:
        here = sum(client.activity != pb.CLIENT_ACTIVITY_LEFT for client in status.clients)
        return text.append(f" {here}/{status.min_clients}", style="default")
    if status.phase in (pb.PHASE_FAILED, pb.PHASE_STOPPED):
        return text.append(f" after {status.round}/{status.rounds} rounds", style="default")
    open_round = status.phase in (pb.PHASE_COLLECTING, pb.PHASE_AGGREGATING, pb.PHASE_PAUSED)
    where = f" {_HELD.get(status.held_phase, 'in')}" if status.phase == pb.PHASE_PAUSED else ""
    return text.append(
        f"{where} round {min(status.round + open_round, status.rounds)}/{status.rounds}", style="default"
    )


def facts(status: pb.RunStatus) -> Text:
    return Text.assemble(
        ("mean accuracy ", "dim"),
        (percent(mean_accuracy(status)), "bold"),
        ("   up ", "dim"),
        human_bytes(status.bytes_up),
        ("   down ", "dim"),
        human_bytes(status.bytes_down),
    )


def mean_accuracy(status: pb.RunStatus) -> float | None:
    """None until it is of trained models: before, some rules of inference have nothing to go by."""
    rounds = [client.metrics_round for client in status.clients if client.HasField("metrics")]
    return status.mean_accuracy if min(rounds, default=0) > 0 and status.HasField("mean_accuracy") else None


def clients_table(status: pb.RunStatus, history: RunHistory, *, width: int, rows: int) -> Table:
    wide = width >= WIDE
    table = plain_table()
    table.add_column("id", justify="right", style="bold")
    table.add_column("architecture", no_wrap=True, overflow="ellipsis")
    if wide:
        table.add_column("parameters", justify="right")
        table.add_column("device")
    table.add_column("doing", no_wrap=True, min_width=_DOING_WIDTH)
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
        table.add_row("…", *[""] * (3 if wide else 1), _doing_together(hidden, status))
    return table


def _client_row(client: pb.ClientStatus, status: pb.RunStatus, history: RunHistory, *, wide: bool) -> list[Text | str]:
    # as text: what a client says of itself is not to be taken for markup
    more: list[Text | str] = []
    if wide:
        more = [f"{client.capabilities.parameters:,}", Text(client.capabilities.device or NO_VALUE)]
    trend = [sparkline(history.trend(client.client_id), _TREND_WIDTH)] if wide else []
    return [
        str(client.client_id),
        Text(client.capabilities.architecture or NO_VALUE),
        *more,
        doing(client, status.phase),
        str(client.classes_held),
        str(client.train_samples),
        percent(trained_accuracy(client)),
        *trend,
    ]


def doing(client: pb.ClientStatus, phase: pb.Phase.ValueType) -> Text:
    word, style = _activity(client, phase)
    if word == "training" and client.progress.epochs:
        word = f"training {client.progress.epochs_done}/{client.progress.epochs} epochs"
    elif word == "training":
        # chosen, but no epoch is done: it downloads, evaluates, or waits for another client of its process
        word, style = "queued", "dim"
    return Text(word, style=style)


def _activity(client: pb.ClientStatus, phase: pb.Phase.ValueType) -> tuple[str, str]:
    if client.activity == pb.CLIENT_ACTIVITY_DONE or phase == pb.PHASE_FINISHED:
        return "done", "green"
    if client.activity == pb.CLIENT_ACTIVITY_TRAINING:
        return "training", "cyan"
    if client.activity == pb.CLIENT_ACTIVITY_UPLOADED:
        return "uploaded", "green"
    if client.activity == pb.CLIENT_ACTIVITY_AWAY:
        return "away", "red"
    if client.activity == pb.CLIENT_ACTIVITY_LEFT:
        return "left", "dim"
    return ("evaluating", "cyan") if phase == pb.PHASE_EVALUATING else ("ready", "dim")


def _doing_together(clients: list[pb.ClientStatus], status: pb.RunStatus) -> Text:
    counts = Counter(_activity(client, status.phase)[0] for client in clients)
    return Text(f"{len(clients)} more: " + ", ".join(f"{count} {word}" for word, count in counts.items()), style="dim")


def _time_text(elapsed: float, left: float | None) -> str:
    return human_seconds(elapsed) if left is None else f"{human_seconds(elapsed)}, about {human_seconds(left)} left"


@dataclass(kw_only=True)
class LiveDisplay:
    """Keeps the newest snapshot on the screen, and clears it when the run is over: the report takes its place."""

    console: Console
    title: str
    clock: Callable[[], float] = time.monotonic
    _history: RunHistory = field(default_factory=RunHistory)
    _shown: RenderableType = ""

    def __post_init__(self) -> None:
        self._shown = Text.assemble((self.title, "bold"), "\nstarting the server and the clients …")
        # rich would draw from a thread of its own, while the history changes here
        self._live = Live(get_renderable=lambda: self._shown, console=self.console, auto_refresh=False, transient=True)
        self._ticking: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._live.start()
        self._ticking = asyncio.create_task(self._tick())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        self._live.stop()

    def show(self, status: pb.RunStatus) -> None:
        self._history.update(status, self.clock())
        self._shown = LiveView(status=status, history=self._history, title=self.title, clock=self.clock)

    async def _tick(self) -> None:
        """Draws at its own pace: time passes without news, and news may come faster than anybody reads."""
        while True:
            self._live.refresh()
            await asyncio.sleep(_TICK_SECONDS)
