"""`feddbp status`: prints the status of a server's run, once or until the run has ended."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

from rich.console import Console
from rich.live import Live

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.command_line import settings_from, settings_parser
from feddbp_common.errors import ExitCode, FedDBPError
from feddbp_lab.api.run_status import RunStatus
from feddbp_lab.commands.options import StatusConfig, StatusViewConfig
from feddbp_lab.control_client import get_status, is_known_host, watch_status
from feddbp_lab.terminal.format import terminal
from feddbp_lab.terminal.status_view import LiveStatusView, StatusView, no_answer

PROG: Final = "feddbp status"
_PATIENCE: Final = timedelta(minutes=5)
"""With --watch: for a server that is being restarted."""
_REFRESHES_PER_SECOND: Final = 2
_PIPE_WIDTH: Final = 160
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
        lines = _StatusLines(_printer(view, output))
        return await _follow(view, lines.show, lines.show_error)
    live = LiveStatusView()
    with Live(live, console=output, refresh_per_second=_REFRESHES_PER_SECOND):
        # a narrower terminal folds the lines that are shown, and the next drawing would leave some of them
        asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, output.clear)
        return await _follow(view, live.show, live.show_error)


def console() -> Console:
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return terminal(width=width, highlight=False)


def _printer(view: StatusViewConfig, output: Console) -> Callable[[pb.RunStatus], None]:
    if view.json_output:
        return lambda status: print(json.dumps(as_dict(status), indent=None if view.watch else 2), flush=True)
    return lambda status: output.print(StatusView(status=status, now=time.time()))


class _StatusLines:
    """Prints every status, and on stderr when a server stops answering, and when another run takes its place."""

    def __init__(self, printer: Callable[[pb.RunStatus], None]) -> None:
        self._print = printer
        self._run_id = ""
        self._has_answered = self._is_lost = False

    def show(self, status: pb.RunStatus) -> None:
        if self._run_id not in ("", status.run_id):
            _note(f"the server holds another run now; it was {self._run_id}")
        self._run_id, self._has_answered, self._is_lost = status.run_id, True, False
        self._print(status)

    def show_error(self, error: FedDBPError) -> None:
        if not self._is_lost:
            _note(no_answer(error, is_first=not self._has_answered))
        self._is_lost = True


def _note(text: str) -> None:
    print(f"{PROG}: {text}", file=sys.stderr, flush=True)


async def _follow(
    view: StatusViewConfig, show: Callable[[pb.RunStatus], None], show_error: Callable[[FedDBPError], None]
) -> pb.RunStatus:
    if not await is_known_host(view.server):
        await get_status(view.server, view.credentials)  # raises what is wrong: no retry would help
    async with aclosing(watch_status(view.server, view.credentials, patience=_PATIENCE, on_error=show_error)) as stream:
        async for status in stream:
            show(status)
    return status


def as_dict(status: pb.RunStatus) -> dict[str, Any]:
    """The JSON output."""
    return asdict(RunStatus.from_message(status))
