"""`feddbp status`: where the run of a server stands, once or for as long as it goes on."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.cli import settings_from, settings_parser
from feddbp_common.errors import ExitCode
from feddbp_lab.config import StatusConfig, ViewConfig
from feddbp_lab.history import trained_accuracy
from feddbp_lab.live import doing, facts, mean_accuracy, round_text
from feddbp_lab.units import NOTHING, human_seconds, listed, percent
from feddbp_lab.watch import get_status, watch_status

PROG: Final = "feddbp status"
_PATIENCE: Final = timedelta(seconds=30)
_SHOWN_INCIDENTS: Final = 5


def command(argv: Sequence[str]) -> int:
    parser = settings_parser(PROG, "Shows where the run of a server stands.", StatusConfig)
    view = settings_from(StatusConfig, parser.parse_args(argv)).view
    if not view.watch:
        _printer(view, Console())(asyncio.run(get_status(view.server, view.access)))
        return ExitCode.OK
    last = asyncio.run(_watch(view))
    return ExitCode.OK if last.phase == pb.PHASE_FINISHED else ExitCode.RUN_FAILED


async def _watch(view: ViewConfig) -> pb.RunStatus:
    console = Console()
    if view.json_output or not console.is_terminal:
        return await _follow(view, _printer(view, console))
    with Live(console=console, auto_refresh=False) as live:
        return await _follow(view, lambda status: live.update(status_view(status, now=time.time()), refresh=True))


def _printer(view: ViewConfig, console: Console) -> Callable[[pb.RunStatus], None]:
    if view.json_output:
        return lambda status: print(json.dumps(as_dict(status), indent=None if view.watch else 2), flush=True)
    return lambda status: console.print(status_view(status, now=time.time()))


async def _follow(view: ViewConfig, show: Callable[[pb.RunStatus], None]) -> pb.RunStatus:
    # asked for first: a server that is not there at all is told at once, one that goes away later is waited for
    status = await get_status(view.server, view.access)
    async with aclosing(watch_status(view.server, view.access, patience=_PATIENCE)) as stream:
        async for status in stream:
            show(status)
    return status


def status_view(status: pb.RunStatus, *, now: float) -> RenderableType:
    parts: list[RenderableType] = [
        Text.assemble((status.method, "bold"), ("  run ", "dim"), status.run_id, overflow="ellipsis", no_wrap=True),
        _standing(status),
        facts(status),
    ]
    if status.clients:
        parts.extend((Text(), _clients(status, now)))
    incidents = _incident_lines(status, now)
    if incidents:
        parts.extend((Text(), *incidents))
    return Group(*parts)


def _standing(status: pb.RunStatus) -> Text:
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
    return f"client {ids[0]}" if len(ids) == 1 else f"clients {listed(ids)}"


def _clients(status: pb.RunStatus, now: float) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    table.add_column("id", justify="right", style="bold")
    table.add_column("architecture", no_wrap=True, overflow="ellipsis")
    table.add_column("device", no_wrap=True)
    table.add_column("doing", no_wrap=True)
    table.add_column("last seen", justify="right", no_wrap=True)
    table.add_column("accuracy", justify="right", style="bold", no_wrap=True)
    for client in status.clients:
        table.add_row(
            str(client.client_id),
            client.capabilities.architecture or NOTHING,
            client.capabilities.device or NOTHING,
            doing(client, status.phase),
            _ago(now - client.last_seen.ToNanoseconds() / 1e9),
            percent(trained_accuracy(client)),
        )
    return table


def _ago(seconds: float) -> str:
    return "now" if seconds < 1 else f"{human_seconds(seconds)} ago"


def _incident_lines(status: pb.RunStatus, now: float) -> list[Text]:
    lines = []
    for incident in list(status.incidents)[-_SHOWN_INCIDENTS:]:
        who = f"client {incident.client_id}: " if incident.HasField("client_id") else ""
        ago = _ago(now - incident.at.ToNanoseconds() / 1e9)
        lines.append(Text.assemble((f"{ago}: ", "dim"), (f"{who}{incident.message}", "yellow")))
    return lines


def as_dict(status: pb.RunStatus) -> dict[str, Any]:
    """For programs: lower-case words for enums, numbers as numbers, times in ISO 8601, null where nothing is known."""
    return {
        "run_id": status.run_id,
        "method": status.method,
        "phase": _word(pb.Phase.Name(status.phase), "PHASE_"),
        "round": status.round,
        "rounds": status.rounds,
        "min_clients": status.min_clients,
        "missing": list(status.missing),
        "seconds_left": status.time_left.ToTimedelta().total_seconds() if status.HasField("time_left") else None,
        "reason": status.reason,
        "mean_accuracy": mean_accuracy(status),
        "bytes_up": status.bytes_up,
        "bytes_down": status.bytes_down,
        "clients": [_client_as_dict(client) for client in status.clients],
        "incidents": [_incident_as_dict(incident) for incident in status.incidents],
    }


def _client_as_dict(client: pb.ClientStatus) -> dict[str, Any]:
    return {
        "client": client.client_id,
        "activity": _word(pb.ClientActivity.Name(client.activity), "CLIENT_ACTIVITY_"),
        "architecture": client.capabilities.architecture,
        "parameters": client.capabilities.parameters,
        "device": client.capabilities.device,
        "classes_held": client.classes_held,
        "train_samples": client.train_samples,
        "test_samples": client.test_samples,
        "last_seen": _iso(client.last_seen.ToNanoseconds()),
        "epochs_done": client.progress.epochs_done,
        "epochs": client.progress.epochs,
        "accuracy": trained_accuracy(client),
        "accuracy_round": client.metrics_round if client.HasField("metrics") else None,
    }


def _incident_as_dict(incident: pb.Incident) -> dict[str, Any]:
    return {
        "at": _iso(incident.at.ToNanoseconds()),
        "client": incident.client_id if incident.HasField("client_id") else None,
        "message": incident.message,
    }


def _word(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower()


def _iso(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat(timespec="milliseconds")
