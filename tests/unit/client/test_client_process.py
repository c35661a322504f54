"""Several clients in one process, with fake daemons."""

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


class FakeDaemon:
    def __init__(self, client_id: int, work: Callable[[], Awaitable[ExitCode]]) -> None:
        self.client_id = client_id
        self.has_left = asyncio.Event()
        self.stopped = False
        self.outcome: ExitCode | BaseException | None = None
        self._work = work

    async def run(self) -> ExitCode:
        try:
            self.outcome = await self._work()
        except BaseException as error:
            self.outcome = error
            raise
        return self.outcome

    def stop(self) -> None:
        self.stopped = True

    async def leave(self) -> None:
        await asyncio.sleep(0)
        self.has_left.set()


async def run_fakes(*daemons: FakeDaemon, all_or_none: bool = False) -> int:
    fakes: Any = daemons
    async with asyncio.timeout(30):
        return await run_daemons(fakes, all_or_none=all_or_none)


async def failing() -> ExitCode:
    raise TrainingError("training diverged")


async def slow() -> ExitCode:
    await asyncio.sleep(0.05)
    return ExitCode.OK


async def test_a_failure_is_logged_at_once_and_raised_when_the_other_clients_have_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    healthy = FakeDaemon(8, slow)
    with pytest.raises(TrainingError, match="training diverged"):
        await run_fakes(FakeDaemon(7, failing), healthy)
    assert healthy.outcome is ExitCode.OK
    assert caplog.messages == ["client 7 failed: training diverged"]


async def test_all_or_none_stops_with_the_first_failure() -> None:
    healthy = FakeDaemon(8, slow)
    with pytest.raises(TrainingError, match="training diverged"):
        await run_fakes(FakeDaemon(7, failing), healthy, all_or_none=True)
    assert healthy.outcome is None


async def test_the_highest_exit_code_is_returned() -> None:
    async def failed_run() -> ExitCode:
        return ExitCode.RUN_FAILED

    assert await run_fakes(FakeDaemon(0, slow), FakeDaemon(1, failed_run)) == ExitCode.RUN_FAILED


@pytest.mark.parametrize(("number", "leaves"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
async def test_an_interrupted_client_leaves_before_its_training_has_ended(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, leaves: bool
) -> None:
    monkeypatch.setattr(os, "_exit", lambda code: None)  # it would end the test process after the grace period

    async def train_for_long() -> ExitCode:
        os.kill(os.getpid(), number)
        try:
            await asyncio.Event().wait()
        finally:
            if leaves:
                await daemon.has_left.wait()  # set only if leaving does not wait for this work
        raise AssertionError("was not cancelled")

    daemon = FakeDaemon(0, train_for_long)
    assert await run_fakes(daemon) == ExitCode.INTERRUPTED
    assert daemon.stopped
    assert daemon.has_left.is_set() is leaves
