"""Runs the clients of one process side by side until all have ended or a signal stops them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from typing import Final

from feddbp_client.daemon.session_loop import ClientDaemon
from feddbp_common.errors import ExitCode, FedDBPError

log = logging.getLogger("feddbp.client")
_GRACE_SECONDS: Final = 5.0


async def run_daemons(daemons: Sequence[ClientDaemon], *, all_or_none: bool) -> int:
    """Runs all clients and returns the highest exit code; raises the first failure.

    A failure does not stop the other clients unless `all_or_none`.

    SIGINT (Ctrl-C) removes the clients from the run: they leave it. SIGTERM comes from a supervisor that restarts them:
    they stop without leaving, and the run waits for them.
    """
    running = (
        asyncio.gather(*(daemon.run() for daemon in daemons))
        if all_or_none or len(daemons) == 1
        else asyncio.gather(*(_run_and_log_failure(daemon) for daemon in daemons), return_exceptions=True)
    )
    leaving: list[asyncio.Task[None]] = []
    loop = asyncio.get_running_loop()

    def handle_signal(number: int) -> None:
        if number == signal.SIGINT:  # sent at once: training threads may take longer than the grace period
            leaving.extend(loop.create_task(daemon.leave()) for daemon in daemons)
        for daemon in daemons:
            daemon.stop()
        running.cancel()
        # a thread in a long library call cannot be stopped; a kill at any moment loses nothing
        loop.call_later(_GRACE_SECONDS, os._exit, ExitCode.INTERRUPTED)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, handle_signal, number)
    try:
        codes = [_exit_code(outcome) for outcome in await running]
    except asyncio.CancelledError:
        await asyncio.gather(*leaving)
        return ExitCode.INTERRUPTED
    return max(codes)


async def _run_and_log_failure(daemon: ClientDaemon) -> ExitCode:
    """Logs a failure when it occurs: the process may run for long afterwards."""
    try:
        return await daemon.run()
    except FedDBPError as error:
        log.error("client %d failed: %s", daemon.client_id, error)
        raise
    except Exception:
        log.exception("client %d failed", daemon.client_id)
        raise


def _exit_code(outcome: ExitCode | BaseException) -> ExitCode:
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome
