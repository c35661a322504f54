"""Handlers for the signals that ask a command to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Final

_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def handle_stop_signals(stop: Callable[[], object]) -> None:
    """Calls `stop` at every stop signal. A signal that is ignored stays so: `nohup` ignores SIGHUP on purpose."""
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stop)
