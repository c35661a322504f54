"""Several clients in one process, with daemons that only pretend."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from feddbp_client.process import run_daemons
from feddbp_client.training.trainer import TrainingError
from feddbp_common.errors import ExitCode


class PretendedDaemon:
    def __init__(self, client_id: int, life: Callable[[], Awaitable[ExitCode]]) -> None:
        self.client_id = client_id
        self.has_left = asyncio.Event()
        self.stopped = False
        self.outcome: ExitCode | BaseException | None = None
        self._life = life

    async def run(self) -> ExitCode:
        try:
            self.outcome = await self._life()
        except BaseException as error:
            self.outcome = error
            raise
        return self.outcome

    def stop(self) -> None:
        self.stopped = True

    async def leave(self) -> None:
        await asyncio.sleep(0)
        self.has_left.set()


async def hosted(*daemons: PretendedDaemon, all_or_none: bool = False) -> int:
    pretended: Any = daemons
    async with asyncio.timeout(30):
        return await run_daemons(pretended, all_or_none=all_or_none)


async def failing() -> ExitCode:
    raise TrainingError("training diverged")


async def slow() -> ExitCode:
    await asyncio.sleep(0.05)
    return ExitCode.OK


async def test_the_others_go_on_when_one_fails_and_its_cause_is_told_at_once_and_raised_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    healthy = PretendedDaemon(8, slow)
    with pytest.raises(TrainingError, match="training diverged"):
        await hosted(PretendedDaemon(7, failing), healthy)
    assert healthy.outcome is ExitCode.OK
    assert caplog.messages == ["client 7 failed: training diverged"]


async def test_all_or_none_ends_with_the_first_that_fails() -> None:
    healthy = PretendedDaemon(8, slow)
    with pytest.raises(TrainingError, match="training diverged"):
        await hosted(PretendedDaemon(7, failing), healthy, all_or_none=True)
    assert healthy.outcome is None


async def test_the_worst_exit_code_counts() -> None:
    async def failed_run() -> ExitCode:
        return ExitCode.RUN_FAILED

    assert await hosted(PretendedDaemon(0, slow), PretendedDaemon(1, failed_run)) == ExitCode.RUN_FAILED


@pytest.mark.parametrize(("number", "leaves"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
async def test_a_client_that_is_interrupted_says_goodbye_before_its_work_has_ended(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, leaves: bool
) -> None:
    monkeypatch.setattr(os, "_exit", lambda code: None)  # the end after the grace would be that of the tests

    async def in_a_thread_for_long() -> ExitCode:
        os.kill(os.getpid(), number)
        try:
            await asyncio.Event().wait()
        finally:
            if leaves:
                await daemon.has_left.wait()  # only ever comes if nobody waits for this work first
        raise AssertionError("was not cancelled")

    daemon = PretendedDaemon(0, in_a_thread_for_long)
    assert await hosted(daemon) == ExitCode.INTERRUPTED
    assert daemon.stopped
    assert daemon.has_left.is_set() is leaves
