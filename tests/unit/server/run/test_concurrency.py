"""Signals of a change, and tasks that outlive their caller."""

from __future__ import annotations

import asyncio

import pytest

from feddbp_server.run.concurrency import BackgroundTasks, Broadcast
from feddbp_server.store.body_log import DamagedBodyError


async def test_no_change_is_missed_between_reading_and_waiting() -> None:
    broadcast = Broadcast()
    upcoming = broadcast.upcoming()
    broadcast.publish()
    await asyncio.wait_for(upcoming.wait(), timeout=1)
    assert not broadcast.upcoming().is_set()


async def test_shielded_work_is_completed_although_its_caller_is_cancelled() -> None:
    tasks, begun, may_end = BackgroundTasks(), asyncio.Event(), asyncio.Event()
    done = []

    async def work() -> None:
        begun.set()
        await may_end.wait()
        done.append("work")

    caller = asyncio.create_task(tasks.run_shielded(work()))
    await begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert done == []
    may_end.set()
    await tasks.settled()
    assert done == ["work"]


async def test_shielded_work_returns_its_result_and_raises_its_error() -> None:
    tasks = BackgroundTasks()

    async def half(number: int) -> int:
        if number % 2:
            raise ArithmeticError(f"{number} is odd")
        return number // 2

    assert await tasks.run_shielded(half(4)) == 2
    with pytest.raises(ArithmeticError, match="3 is odd"):
        await tasks.run_shielded(half(3))


async def test_settled_waits_for_tasks_that_a_task_begins() -> None:
    tasks, done = BackgroundTasks(), []

    async def last() -> None:
        await asyncio.sleep(0)
        done.append("last")

    async def first() -> None:
        tasks.begin(last())
        done.append("first")

    tasks.begin(first())
    await tasks.settled()
    assert done == ["first", "last"]


async def test_a_failure_that_no_caller_sees_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    tasks = BackgroundTasks()

    async def fail() -> None:
        raise DamagedBodyError("run.sqlite3-uploads does not hold the upload of client 1")

    with pytest.raises(DamagedBodyError):
        await tasks.run_shielded(fail())
    assert caplog.records == []
    tasks.begin(fail())
    await tasks.settled()
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "DamagedBodyError: run.sqlite3-uploads does not hold" in caplog.text


async def test_a_task_that_fails_does_not_fail_those_that_wait_for_all() -> None:
    tasks = BackgroundTasks()

    async def fail() -> None:
        raise OSError("no space left on device")

    failed = tasks.begin(fail())
    await tasks.settled()
    assert isinstance(failed.exception(), OSError)
