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
from feddbp_common.humanize import client_names
from feddbp_common.rpc.diagnosis import ServerMistakeError

log = logging.getLogger("feddbp.client")
_GRACE_SECONDS: Final = 5.0


async def run_daemons(daemons: Sequence[ClientDaemon], *, all_or_none: bool) -> int:
    """Runs all clients and returns the highest exit code; raises the first failure.

    A failure does not stop the other clients unless `all_or_none`.

    SIGINT (Ctrl-C) removes the clients from the run: they leave it. SIGTERM comes from a supervisor that restarts them:
    they stop without leaving, and the run waits for them. A second signal ends the process at once.
    """
    running = (
        asyncio.gather(*(daemon.run() for daemon in daemons))
        if all_or_none or len(daemons) == 1
        else asyncio.gather(*(_run_and_log_failure(daemon) for daemon in daemons), return_exceptions=True)
    )
    leaving: list[asyncio.Task[None]] = []
    interrupted = False
    loop = asyncio.get_running_loop()

    def handle_signal(number: signal.Signals) -> None:
        nonlocal interrupted
        if interrupted:
            os._exit(ExitCode.INTERRUPTED)
        interrupted = True
        _log_signal(number, daemons)
        for daemon in daemons:
            daemon.stop()
        running.cancel()
        if number == signal.SIGINT:  # sent at once: training threads may take longer than the grace period
            leaving.extend(loop.create_task(daemon.leave()) for daemon in daemons)
        # a thread in a long library call cannot be stopped; a kill at any moment loses nothing
        loop.call_later(_GRACE_SECONDS, os._exit, ExitCode.INTERRUPTED)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, handle_signal, number)
    try:
        codes = [_exit_code(outcome) for outcome in await running]
    except (asyncio.CancelledError, FedDBPError):
        if not interrupted:
            raise
        await asyncio.gather(*leaving)
        return ExitCode.INTERRUPTED
    return max(codes)


def _log_signal(number: signal.Signals, daemons: Sequence[ClientDaemon]) -> None:
    joined = [daemon.client_id for daemon in daemons if daemon.has_joined]
    if not joined:
        names = client_names([daemon.client_id for daemon in daemons])
        log.info("%s: stopping; %s had not joined a run", number.name, names)
    elif number == signal.SIGINT:
        log.info("%s: leaving the run with %s; the same command joins it again", number.name, client_names(joined))
    else:
        log.info("%s: stopping %s without leaving the run; the same command resumes", number.name, client_names(joined))


async def _run_and_log_failure(daemon: ClientDaemon) -> ExitCode:
    """Logs a failure when it occurs: the process may run for long afterwards."""
    try:
        return await daemon.run()
    except ServerMistakeError:  # that of every client in this process: the command ends with it
        raise
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
