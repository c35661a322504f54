"""Signals that ask a command to stop, in order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Final

_ASK_TO_STOP: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def handle_stop_signals(stop: Callable[[], object]) -> None:
    """Calls `stop` at every such signal, but for those that are ignored: under `nohup` a hang-up is none."""
    loop = asyncio.get_running_loop()
    for number in _ASK_TO_STOP:
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stop)
