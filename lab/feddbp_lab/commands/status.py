"""`feddbp status`: prints the status of a server's run, once or until the run has ended."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from rich.console import Console
from rich.live import Live

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.command_line import settings_from, settings_parser
from feddbp_common.errors import ExitCode, FedDBPError
from feddbp_lab.commands.options import StatusConfig, StatusViewConfig
from feddbp_lab.control_client import get_status, watch_status
from feddbp_lab.terminal.status_table import LiveStatusView, StatusView
from feddbp_lab.terminal.status_text import mean_accuracy, trained_accuracy

PROG: Final = "feddbp status"
_PATIENCE: Final = timedelta(seconds=30)
_REFRESHES_PER_SECOND: Final = 2
_PIPE_WIDTH: Final = 120
"""Columns of the output if it is no terminal."""


def command(argv: Sequence[str]) -> int:
    parser = settings_parser(PROG, "Shows the status of a server's run.", StatusConfig)
    view = settings_from(StatusConfig, parser.parse_args(argv)).view
    if not view.watch:
        _printer(view, console())(asyncio.run(get_status(view.server, view.credentials)))
        return ExitCode.OK
    last = asyncio.run(_watch(view))
    return ExitCode.OK if last.phase == pb.PHASE_FINISHED else ExitCode.RUN_FAILED


async def _watch(view: StatusViewConfig) -> pb.RunStatus:
    output = console()
    if view.json_output or not output.is_terminal:
        return await _follow(view, _printer(view, output))
    live = LiveStatusView()
    with Live(live, console=output, refresh_per_second=_REFRESHES_PER_SECOND):
        return await _follow(view, live.show, live.show_error)


def console() -> Console:
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return Console(width=width, highlight=False)


def _printer(view: StatusViewConfig, output: Console) -> Callable[[pb.RunStatus], None]:
    if view.json_output:
        return lambda status: print(json.dumps(as_dict(status), indent=None if view.watch else 2), flush=True)
    return lambda status: output.print(StatusView(status=status, now=time.time()))


async def _follow(
    view: StatusViewConfig,
    show: Callable[[pb.RunStatus], None],
    show_error: Callable[[FedDBPError], None] = lambda _: None,
) -> pb.RunStatus:
    # a first call without retries: a server that does not answer at the start is an error, later it is waited for
    status = await get_status(view.server, view.credentials)
    async with aclosing(watch_status(view.server, view.credentials, patience=_PATIENCE, on_error=show_error)) as stream:
        async for status in stream:
            show(status)
    return status


def as_dict(status: pb.RunStatus) -> dict[str, Any]:
    """The JSON output: lower-case words for enums, times in ISO 8601, null for unknown values."""
    return {
        "run_id": status.run_id,
        "method": status.method,
        "phase": _word(pb.Phase.Name(status.phase), "PHASE_"),
        "held_phase": _word(pb.Phase.Name(status.held_phase), "PHASE_") if status.held_phase else None,
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
        "refusals": dict(sorted(status.refusals.items())),
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
        "train_seconds": client.metrics.seconds.train if client.HasField("metrics") else None,
        "bytes_up": client.bytes_up,
        "bytes_down": client.bytes_down,
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
