"""One attempt at a cell: what it leaves when it fails or is cancelled, while the program does other things."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import pytest
from experiment_samples import planned

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.artifacts import SERVER_LOCK_NAME
from feddbp_common.file_lock import FileLock
from feddbp_lab.experiments.resources import Allocation, Request
from feddbp_lab.experiments.run import attempt
from feddbp_lab.experiments.run.attempt import CellJob, CellOutcome, Verdict, attempt_cell
from feddbp_lab.experiments.run.lease import current_lease
from feddbp_lab.experiments.run.store import DirectoryStore
from feddbp_lab.experiments.run.workspace import NodeWorkspace

ALLOCATION = Allocation(request=Request())


class EndlessFederation:
    """A federation that has begun, and runs until it is cancelled."""

    core_seconds = 0.0
    began: asyncio.Event

    def __init__(self, options: Any) -> None:
        (options.directory / "server").mkdir()
        (options.directory / "server" / "run.sqlite3").write_text("state")

    async def __aenter__(self) -> Self:
        self.began.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def __aexit__(self, *error: object) -> None: ...


class FederationWithStatus(EndlessFederation):
    """One that tells how far it is before it runs on."""

    frozen = nullcontext

    async def __aenter__(self) -> Self:
        return self

    async def statuses(self) -> AsyncIterator[pb.RunStatus]:
        yield pb.RunStatus(phase=pb.PHASE_COLLECTING, round=1)
        self.began.set()
        await asyncio.Event().wait()


class Slow:
    """A method that does not return before the event loop has noticed that it was called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self._method = getattr(NodeWorkspace, name)
        self._loop = asyncio.get_running_loop()
        self.called = asyncio.Event()
        self.may_return = threading.Event()
        self.returned = False
        monkeypatch.setattr(NodeWorkspace, name, lambda *arguments, **named: self._call(*arguments, **named))

    def _call(self, *arguments: Any, **named: Any) -> None:
        self._loop.call_soon_threadsafe(self.called.set)
        assert self.may_return.wait(30)
        self._method(*arguments, **named)
        self.returned = True


@pytest.fixture
def job(tmp_path: Path) -> CellJob:
    _, expanded = planned(tmp_path / "out", axes={"method": ["fd"]}, report={})
    (cell,) = expanded.cells.values()
    out = str(tmp_path / "out")
    return CellJob(cell=cell, out=out, data_dir=tmp_path, in_place=False, work_dir=tmp_path / "work")


@pytest.fixture
def begin(job: CellJob, monkeypatch: pytest.MonkeyPatch) -> Callable[[], asyncio.Task[CellOutcome]]:
    def start() -> asyncio.Task[CellOutcome]:
        EndlessFederation.began = asyncio.Event()
        monkeypatch.setattr(attempt, "LocalFederation", EndlessFederation)
        return asyncio.create_task(attempt_cell(job, ALLOCATION, lambda _: None))

    return start


def is_released(job: CellJob) -> bool:
    lease = current_lease(DirectoryStore(Path(job.out)), job.cell.id)
    return lease is not None and lease.released


Begin = Callable[[], "asyncio.Task[CellOutcome]"]


async def test_others_go_on_while_a_cancelled_attempt_copies_its_state(
    job: CellJob, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, running = Slow(monkeypatch, "copy"), begin()
    await EndlessFederation.began.wait()
    running.cancel()
    await asyncio.wait_for(slow.called.wait(), 30)
    slow.may_return.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert list((Path(job.out) / "cells" / job.cell.id).glob("copy-000001-*.tar"))
    assert is_released(job)


async def test_further_cancellations_do_not_remove_the_directory_of_a_copy_in_progress(
    job: CellJob, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, running = Slow(monkeypatch, "copy"), begin()
    await EndlessFederation.began.wait()
    running.cancel()
    await slow.called.wait()
    for _ in range(3):
        running.cancel()
        await asyncio.sleep(0)
    assert not running.done()
    slow.may_return.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert slow.returned
    assert is_released(job)
    assert job.work_dir is not None
    assert [path.name for path in job.work_dir.iterdir()] == [".in-use"]


async def test_a_cancelled_attempt_leaves_the_cell_to_others_without_room_for_a_copy(
    job: CellJob, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NodeWorkspace, "copy", no_room)
    running = begin()
    await EndlessFederation.began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert is_released(job)


async def test_others_go_on_while_a_failed_attempt_publishes_its_failure(
    job: CellJob, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EndlessFederation, "__aenter__", fail)
    slow, running = Slow(monkeypatch, "publish_failure"), begin()
    await asyncio.wait_for(slow.called.wait(), 30)
    slow.may_return.set()
    outcome = await running
    assert outcome.failure is not None
    assert outcome.failure.cause == "the disk is full"
    assert (Path(job.out) / "cells" / job.cell.id / "failure.json").exists()
    assert is_released(job)


async def fail(_: object) -> None:
    raise OSError("the disk is full")


def no_room(_: object) -> None:
    raise OSError("the disk is full")


async def test_a_copy_that_fails_while_a_cell_runs_does_not_end_it(
    job: CellJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    copies: list[NodeWorkspace] = []

    def no_answer(workspace: NodeWorkspace, *_: object) -> None:
        copies.append(workspace)
        raise OSError("no answer")

    FederationWithStatus.began = asyncio.Event()
    monkeypatch.setattr(attempt, "LocalFederation", FederationWithStatus)
    with monkeypatch.context() as patch:
        patch.setattr(NodeWorkspace, "copy", no_answer)
        running = asyncio.create_task(attempt_cell(replace(job, copy_rounds=1), ALLOCATION, lambda _: None))
        began = asyncio.create_task(FederationWithStatus.began.wait())
        await asyncio.wait({running, began}, return_when=asyncio.FIRST_COMPLETED)
    assert len(copies) == 1
    assert not running.done()
    assert "the state after round 1 was not copied: no answer" in caplog.text
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert list((Path(job.out) / "cells" / job.cell.id).glob("copy-000001-*.tar"))


async def test_state_that_processes_of_a_killed_runner_still_write_is_not_taken_over(
    job: CellJob, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "_EXIT_PATIENCE", timedelta(0))
    server = Path(job.out) / "cells" / job.cell.id / "server"
    server.mkdir(parents=True)
    with FileLock(server / SERVER_LOCK_NAME):
        running = begin()
        began = asyncio.create_task(EndlessFederation.began.wait())
        await asyncio.wait({running, began}, return_when=asyncio.FIRST_COMPLETED)
        assert not began.done()
        outcome = await running
    assert outcome.failure is not None
    assert "a process of an earlier runner still uses" in outcome.failure.cause
    assert server.exists()
    began.cancel()


async def test_a_failed_attempt_leaves_the_cell_to_others_without_room_for_a_copy(
    job: CellJob, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EndlessFederation, "__aenter__", fail)
    monkeypatch.setattr(NodeWorkspace, "copy", no_room)
    assert (await begin()).verdict is Verdict.FAILED
    assert (Path(job.out) / "cells" / job.cell.id / "failure.json").exists()
    assert is_released(job)


async def test_an_attempt_without_a_work_directory_leaves_the_cell_to_others(job: CellJob, begin: Begin) -> None:
    assert job.work_dir is not None
    job.work_dir.write_text("not a directory")
    outcome = await begin()
    assert outcome.verdict is Verdict.FAILED
    assert outcome.failure is not None
    assert "is not a directory" in outcome.failure.cause
    assert is_released(job)
