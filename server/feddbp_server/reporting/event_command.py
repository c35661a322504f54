"""--on-event: a command of the operator's that is started for events that need attention, with JSON on its input."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shlex
import signal
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from feddbp_common.errors import ConfigurationError
from feddbp_common.humanize import human_seconds

log = logging.getLogger("feddbp.server")

_MOST_WAITING: Final = 100
"""Events that wait for a command in progress; more are dropped, and the log says so."""
_OUTPUT_BYTES: Final = 2000
_DEFAULT_TIMEOUT: Final = timedelta(seconds=30)


def command_words(text: str) -> tuple[str, ...]:
    """The words of a command line; no shell is started for it."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigurationError(f"--on-event: {text!r} is not a command line: {error}") from None


class EventCommand:
    """Runs the command once for each event, one after the other; no failure of it reaches the run."""

    def __init__(self, words: Sequence[str] = (), *, timeout: timedelta = _DEFAULT_TIMEOUT) -> None:
        self._words = words
        self._timeout = timeout.total_seconds()
        self._waiting: list[bytes] = []
        self._worker: asyncio.Task[None] | None = None
        self.run_id = ""

    def notify(self, event: str, **facts: Any) -> None:
        """Starts the command with an event, after those that are in progress."""
        if not self._words:
            return
        if len(self._waiting) >= _MOST_WAITING:
            log.warning("--on-event: %d events wait for the command; %s is dropped", len(self._waiting), event)
            return
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._waiting.append(json.dumps({"event": event, "at": at, "run_id": self.run_id, **facts}).encode() + b"\n")
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(self._work())

    async def close(self) -> None:
        """Waits for the events so far, within the time that one command has."""
        if self._worker is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._worker, self._timeout)

    async def _work(self) -> None:
        while self._waiting:
            try:
                await self._run(self._waiting.pop(0))
            except OSError as error:
                log.warning("--on-event: %s cannot be started: %s", self._words[0], error.strerror)
            except Exception:
                log.exception("--on-event failed")
        self._worker = None

    async def _run(self, message: bytes) -> None:
        process = await asyncio.create_subprocess_exec(
            *self._words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # a signal to the server is not one to the command
        )
        try:
            output, _ = await asyncio.wait_for(_communicate(process, message), self._timeout)
        except TimeoutError:
            log.warning("--on-event: %s was ended after %s", self._words[0], human_seconds(self._timeout))
            return
        finally:
            if process.returncode is None:  # not after its end, when the id may be that of another process
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode:
            last = output.decode(errors="replace").strip().rpartition("\n")[2]
            said = f": {last}" if last else ""
            log.warning("--on-event: %s ended with %d%s", self._words[0], process.returncode, said)


async def _communicate(process: asyncio.subprocess.Process, message: bytes) -> tuple[bytes, int]:
    """Sends the message and reads the end of the output, of which there may be any amount."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError, ConnectionResetError):  # it need not read
        process.stdin.write(message)
        await process.stdin.drain()
        process.stdin.close()
    output = b""
    while piece := await process.stdout.read(1 << 16):
        output = (output + piece)[-_OUTPUT_BYTES:]
    return output, await process.wait()
