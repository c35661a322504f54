"""Several clients in one process, with fake daemons."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from feddbp_client.process import run_daemons
from feddbp_client.training.errors import TrainingError
from feddbp_common.errors import ExitCode


class FakeDaemon:
    def __init__(self, client_id: int, work: Callable[[], Awaitable[ExitCode]]) -> None:
        self.client_id = client_id
        self.has_left = asyncio.Event()
        self.stopped = False
        self.has_joined = True
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


def interrupting(number: signal.Signals, *, fails: bool = False) -> Callable[[], Awaitable[ExitCode]]:
    async def work() -> ExitCode:
        os.kill(os.getpid(), number)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if fails:
                raise TrainingError("stopped") from None
            raise
        raise AssertionError("was not cancelled")

    return work


async def forever() -> ExitCode:
    await asyncio.Event().wait()
    return ExitCode.OK


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    ("number", "joined", "line"),
    [
        (signal.SIGINT, True, "SIGINT: leaving the run with clients 0-1; the same command joins it again"),
        (signal.SIGTERM, True, "SIGTERM: stopping clients 0-1 without leaving the run; the same command resumes"),
        (signal.SIGTERM, False, "SIGTERM: stopping; clients 0-1 had not joined a run"),
    ],
)
async def test_a_signal_is_logged_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: signal.Signals,
    joined: bool,
    line: str,
    fails: bool,
) -> None:
    monkeypatch.setattr(os, "_exit", lambda code: None)
    daemons = FakeDaemon(0, interrupting(number, fails=fails)), FakeDaemon(1, forever)
    for daemon in daemons:
        daemon.has_joined = joined
    with caplog.at_level(logging.INFO):
        assert await run_fakes(*daemons, all_or_none=True) == ExitCode.INTERRUPTED
    assert caplog.messages == [line]


async def test_a_second_signal_ends_the_process_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def signalled_twice() -> ExitCode:
        try:
            return await interrupting(signal.SIGINT)()
        finally:
            monkeypatch.setattr(os, "_exit", ended.set_result)
            os.kill(os.getpid(), signal.SIGINT)
            assert await ended == ExitCode.INTERRUPTED
            monkeypatch.setattr(os, "_exit", lambda code: None)

    monkeypatch.setattr(os, "_exit", lambda code: None)
    await run_fakes(FakeDaemon(0, signalled_twice))
    assert ended.done()


def test_matrix_products_of_numpy_use_one_thread_on_any_machine(tmp_path: Path) -> None:
    code = (
        "from threadpoolctl import threadpool_info\n"
        "from feddbp_client.cli import main\n"
        "main(['--id=0', '--server=127.0.0.1:1', '--patience=0s', '--threads=2'])\n"
        "import torch\n"
        "numpy_pool = [pool for pool in threadpool_info() if 'openblas' in pool['internal_api']]\n"
        "print([pool['num_threads'] for pool in numpy_pool], torch.get_num_threads())\n"
    )
    many = {**os.environ, "OPENBLAS_NUM_THREADS": "4", "FEDDBP_STATE_DIR": str(tmp_path)}
    shown = subprocess.run([sys.executable, "-c", code], env=many, capture_output=True, text=True, check=True)
    assert shown.stdout == "[1] 2\n"
