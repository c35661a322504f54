"""The clients of one process: side by side, each with its own fate, until all are done or are told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from typing import Final

from feddbp_client.daemon.daemon import ClientDaemon
from feddbp_common.errors import ExitCode, FedDBPError

log = logging.getLogger("feddbp.client")
_GRACE_SECONDS: Final = 5.0


async def run_daemons(daemons: Sequence[ClientDaemon], *, all_or_none: bool) -> int:
    """Runs all clients of this process; the first cause of trouble is the one raised.

    The others go on without a client that has failed, unless it is all or none.

    Ctrl-C means that somebody wants these clients out of the run, so they leave. SIGTERM is what a supervisor sends
    that will start them again, so they only go away: the run waits for them.
    """
    running = (
        asyncio.gather(*(daemon.run() for daemon in daemons))
        if all_or_none or len(daemons) == 1
        else asyncio.gather(*(_run_and_log_failure(daemon) for daemon in daemons), return_exceptions=True)
    )
    leaving: list[asyncio.Task[None]] = []
    loop = asyncio.get_running_loop()

    def handle_signal(number: int) -> None:
        if number == signal.SIGINT:  # said at once: what is under way in threads may take longer than the grace
            leaving.extend(loop.create_task(daemon.leave()) for daemon in daemons)
        for daemon in daemons:
            daemon.stop()
        running.cancel()
        # a thread in a long call of a library cannot be stopped, and a kill at any moment loses nothing
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
    """Trouble is told when it comes, as the process may go on for long."""
    try:
        return await daemon.run()
    except FedDBPError as error:
        log.error("client %d cannot go on: %s", daemon.client_id, error)
        raise
    except Exception:
        log.exception("client %d cannot go on", daemon.client_id)
        raise


def _exit_code(outcome: ExitCode | BaseException) -> ExitCode:
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome
