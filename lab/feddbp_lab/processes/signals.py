"""Handlers for the signals that ask a command to stop."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from typing import Final

_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def stop_processes_at_signals(prog: str, stop: Callable[[], object]) -> None:
    """Calls `stop` at every stop signal, and says at the first that it was received: processes take time to end."""
    stopping = False

    def say_and_stop() -> None:
        nonlocal stopping
        if not stopping:
            print(f"{prog}: stopping every process…", file=sys.stderr, flush=True)
        stopping = True
        stop()

    handle_stop_signals(say_and_stop)


def handle_stop_signals(stop: Callable[[], object]) -> None:
    """Calls `stop` at every stop signal. A signal that is ignored stays so: `nohup` ignores SIGHUP on purpose."""
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stop)
