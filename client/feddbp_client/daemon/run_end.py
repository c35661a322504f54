"""The end of a run for one client: announced by the server, concluded without it, or recorded by an earlier start."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import timedelta
from pathlib import Path
from typing import Final

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.training.client_directory import ClientDirectory
from feddbp_client.training.session_file import Ending, newest_session, read_session
from feddbp_common.errors import ExitCode
from feddbp_common.printable import printable
from feddbp_common.rpc.enum_words import enum_word

log = logging.getLogger("feddbp.client")

_STARTUP_SECONDS: Final = 15.0
"""In which a server that is started together with its clients answers, on a slow machine, too."""
_RETRY_SECONDS: Final = 0.3


class RunEnd:
    """Records how a client's runs ended, and finds what earlier starts recorded."""

    def __init__(self, client_id: int, state_dir: Path, *, next_run: bool, patience: timedelta) -> None:
        self._client_id = client_id
        self._state_dir = state_dir
        self._next_run = next_run
        self._startup_seconds = min(_STARTUP_SECONDS, patience.total_seconds())
        self._began = time.monotonic()
        self._has_logged_wait = False
        self.completed_rounds: int | None = None
        """As the newest event says; None before the first."""

    def announced(self, ended: pb.RunEnded, directory: ClientDirectory, *, rounds: int) -> ExitCode:
        """The server says that the run has ended."""
        finished = ended.outcome == pb.RUN_OUTCOME_FINISHED
        completed, after = self.completed_rounds, ""
        if completed is not None and completed < rounds:
            after = f" after {completed} of {rounds} rounds"
        text = f"the run {enum_word(pb.RunOutcome.DESCRIPTOR, ended.outcome)}{after}: {printable(ended.reason)}"
        log.log(logging.INFO if finished else logging.ERROR, "client %d: %s", self._client_id, text)
        return self._record(directory, Ending(text, ExitCode.OK if finished else ExitCode.RUN_FAILED))

    def end_while_away(self, reason: str, directory: ClientDirectory | None, *, has_evaluated: bool) -> ExitCode:
        """The server refuses this client, because the run ended while it was away."""
        log.info("client %d: %s", self._client_id, reason)
        ending = Ending(reason, ExitCode.OK if has_evaluated else ExitCode.RUN_FAILED)
        return ending.exit_code if directory is None else self._record(directory, ending)

    def end_without_server(self, problem: Exception, directory: ClientDirectory | None, server: str) -> ExitCode | None:
        """A server that does not answer and has all results of this client is not waited for; None if it lacks some.

        `directory` is that of the current run; without one, a client that was killed before it received the end finds
        that out here.
        """
        path = self._last(server) if directory is None else directory.path
        if path is None or not read_session(path).reported:
            return None
        log.info("client %d: %s; it has all results of this client, nothing is left to do", self._client_id, problem)
        ending = Ending("the server had all results of this client at the end of the run", ExitCode.OK)
        if directory is not None:
            return self._record(directory, ending)
        reopened = ClientDirectory(self._state_dir, path.parent.name, self._client_id)
        try:
            return self._record(reopened, ending)
        finally:
            reopened.close()

    def recorded_ending(self, server: str) -> Ending | None:
        """How the last run of this client with a server ended; None if it continues, or another one is waited for."""
        path = self._last(server)
        return None if path is None else read_session(path).ending

    async def is_confirmed(self) -> bool:
        """Whether a server of another run would have answered by now: a script may start it with its clients."""
        if time.monotonic() - self._began >= self._startup_seconds:
            return True
        if not self._has_logged_wait:
            self._has_logged_wait = True
            wait = f"waiting {self._startup_seconds:g}s for that of another"
            log.info("client %d: its last run has ended and its server does not answer; %s", self._client_id, wait)
        await asyncio.sleep(_RETRY_SECONDS)
        return False

    def _last(self, server: str) -> Path | None:
        """The client's directory in its last run with a server; None if another run is waited for."""
        return None if self._next_run else newest_session(self._state_dir, self._client_id, server)

    def _record(self, directory: ClientDirectory, ending: Ending) -> ExitCode:
        """Notes that the run needs nothing more of this client, and tells where its checkpoint is."""
        directory.set_ended(ending)
        if directory.checkpoint.exists():
            log.info("client %d has its checkpoint in %s", self._client_id, directory.checkpoint)
        return ending.exit_code
