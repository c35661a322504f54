"""One attempt at a cell, wherever an executor runs it: takes the lease, runs the federation, shows the results."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.artifacts import SUMMARY_NAME
from feddbp_common.errors import FedDBPError
from feddbp_common.file_lock import LockHeldError, is_locked
from feddbp_lab.experiments.cell import Cell
from feddbp_lab.experiments.resources import Allocation
from feddbp_lab.experiments.run.cell_dir import CellDir, Failure
from feddbp_lab.experiments.run.lease import (
    Holder,
    Lease,
    LeaseLostError,
    LeaseRecord,
    boot_id,
    cell_key,
    current_lease,
    take_lease,
)
from feddbp_lab.experiments.run.store import DirectoryStore, Store, open_store
from feddbp_lab.experiments.run.workspace import InPlaceWorkspace, NodeWorkspace, Workspace, default_work_dir
from feddbp_lab.processes.federation_options import FederationOptions
from feddbp_lab.processes.freeze import FreezeError
from feddbp_lab.processes.guard import GRACE_SECONDS
from feddbp_lab.processes.local_federation import LocalFederation
from feddbp_lab.results.damage import DAMAGE
from feddbp_lab.terminal.status_words import mean_accuracy, rounds_done

_EXIT_PATIENCE: Final = timedelta(seconds=3 * GRACE_SECONDS)
"""How long the processes of a killed runner may take to exit."""
_POLL_SECONDS: Final = 0.1
_COPY_SHARE: Final = 20
"""A copy is followed by at least so many times the time it took."""

log = logging.getLogger("feddbp.lab")

Progress = Callable[["CellProgressReport"], None]
Result = TypeVar("Result")


class CellInUseError(FedDBPError):
    """Processes of a runner that was killed still use the cell's directory."""


class Verdict(StrEnum):
    DONE = "done"
    FAILED = "failed"
    BUSY = "busy"
    """Another process has the cell."""
    LOST = "lost"
    """Another process has taken the cell over, or the node that had it is gone."""


@dataclass(frozen=True, kw_only=True)
class CellJob:
    """A cell, and everything that an executor needs to run it on any machine."""

    cell: Cell
    out: str
    data_dir: Path
    in_place: bool
    """Whether the state is kept in the cell's directory at --out while the cell runs."""
    work_dir: Path | None = None
    """Where it is kept otherwise; None: in the temporary directory of the machine."""
    keep_state: bool = False
    lease_seconds: float = 60.0
    copy_rounds: int = 5
    track: tuple[str, ...] = ()
    """Experiment trackers that the run is written to, from the machine on which it runs."""
    ended_lease: LeaseRecord | None = None
    """The cell's lease, of which the runner knows that it has ended."""


@dataclass(frozen=True, kw_only=True)
class CellProgressReport:
    """Where a cell runs, and how far it is."""

    node: str
    attempt: int
    rounds: float
    """Completed rounds, plus the finished part of the open one."""
    is_others: bool = False
    """Whether another runner has the cell."""


@dataclass(frozen=True, kw_only=True)
class CellOutcome:
    """How an attempt ended."""

    verdict: Verdict
    summary: dict[str, Any] | None = None
    failure: Failure | None = None


async def attempt_cell(job: CellJob, allocation: Allocation, progress: Progress) -> CellOutcome:
    """Runs a cell unless it is done or another process has it.

    A cancellation stops the federation in order and leaves the cell to others; a second one kills it.
    """
    try:
        store = open_store(job.out)
        with _machine_lock(store, job.cell.id):
            lease = _take(job, store)
            if lease is None:
                return CellOutcome(verdict=Verdict.BUSY)
            if is_done(store, job.cell.id):
                lease.remove()
                return CellOutcome(verdict=Verdict.DONE)
            return await _Attempt(job, allocation, progress, store, lease).run()
    except LockHeldError:
        return CellOutcome(verdict=Verdict.BUSY)
    except (FedDBPError, OSError) as error:  # --out cannot be used
        return CellOutcome(verdict=Verdict.FAILED, failure=Failure.of(error))


def is_done(store: Store, cell_id: str) -> bool:
    if isinstance(store, DirectoryStore):
        return (store.path / cell_key(cell_id, SUMMARY_NAME)).exists()
    return SUMMARY_NAME in store.names(cell_key(cell_id))


def _machine_lock(store: Store, cell_id: str) -> AbstractContextManager[object]:
    """Keeps other processes of this machine out, and tells them at once when this one is killed."""
    if not isinstance(store, DirectoryStore):
        return nullcontext()
    return CellDir(store.path / cell_key(cell_id)).lock()


def _take(job: CellJob, store: Store) -> Lease | None:
    found = current_lease(store, job.cell.id)
    has_ended = (
        found is None
        or found.released
        or (job.ended_lease is not None and job.ended_lease.mark == found.mark)
        # this process has the lock that the holder on this machine would have
        or (isinstance(store, DirectoryStore) and found.boot == boot_id())
    )
    return take_lease(store, job.cell.id, Holder.here(), job.lease_seconds, after=found) if has_ended else None


class _Attempt:
    def __init__(self, job: CellJob, allocation: Allocation, progress: Progress, store: Store, lease: Lease) -> None:
        self._job = job
        self._allocation = allocation
        self._progress = progress
        self._store = store
        self._lease = lease
        self._rounds = 0.0
        self._accuracy: float | None = None
        self._clients = 0
        self._lost: LeaseLostError | None = None
        self._copied_rounds = 0
        self._next_copy = 0.0

    async def run(self) -> CellOutcome:
        self._report()
        running = asyncio.current_task()
        assert running is not None
        renewing = asyncio.create_task(self._renew(running))
        try:
            async with self._workspace() as workspace:
                return await self._run_in(workspace)
        except asyncio.CancelledError:
            if self._lost is None:
                raise
            running.uncancel()
            return CellOutcome(verdict=Verdict.LOST)
        finally:
            renewing.cancel()

    @asynccontextmanager
    async def _workspace(self) -> AsyncIterator[Workspace]:
        created: list[Workspace] = []
        try:
            await _uninterrupted(lambda: created.append(self._new_workspace()))
            yield created[0]
        finally:
            if created:
                await _uninterrupted(created[0].close)
            else:
                await _uninterrupted(self._release)

    def _new_workspace(self) -> Workspace:
        if self._job.in_place:
            assert isinstance(self._store, DirectoryStore)
            return InPlaceWorkspace(self._store, self._lease)
        return NodeWorkspace(self._store, self._lease, self._job.work_dir or default_work_dir())

    async def _run_in(self, workspace: Workspace) -> CellOutcome:
        try:
            summary = await self._results(workspace)
        except LeaseLostError:
            return CellOutcome(verdict=Verdict.LOST)
        except asyncio.CancelledError:
            if self._lost is None:
                await _uninterrupted(self._leave_to_others, workspace)
            raise
        except DAMAGE as error:
            failure = Failure.of(error)
            # the node's directory is removed, its logs are kept at --out
            kept = f"{self._job.out}/{cell_key(self._job.cell.id)}".rstrip("/")
            failure = replace(failure, cause=failure.cause.replace(str(workspace.directory.path), kept))
            await _uninterrupted(self._publish_failure, workspace, failure)
            return CellOutcome(verdict=Verdict.FAILED, failure=failure)
        return CellOutcome(verdict=Verdict.DONE, summary=summary)

    async def _results(self, workspace: Workspace) -> dict[str, Any]:
        directory, keep_state = workspace.directory, self._job.keep_state
        if isinstance(self._store, DirectoryStore):  # a runner that was killed may have worked in place
            await wait_until_released(self._cell_dir(self._store).process_locks(), _EXIT_PATIENCE)
        await _uninterrupted(workspace.open, self._job.cell.run)
        directory.record_attempt(self._lease.epoch, self._lease.record.node)
        await self._run_federation(workspace)
        await asyncio.to_thread(self._lease.verify)
        results = await _uninterrupted(partial(directory.collect_results, keep_state=keep_state))
        await _uninterrupted(self._publish, workspace)
        return results.summary

    def _publish(self, workspace: Workspace) -> None:
        keep_state = self._job.keep_state
        workspace.publish(keep_state=keep_state)
        if isinstance(self._store, DirectoryStore):
            self._cell_dir(self._store).clean_up(keep_state=keep_state)
        self._lease.remove()

    def _cell_dir(self, store: DirectoryStore) -> CellDir:
        return CellDir(store.path / cell_key(self._job.cell.id))

    def _publish_failure(self, workspace: Workspace, failure: Failure) -> None:
        # on a full disk the failure is at least displayed, and the other cells run
        with suppress(OSError, LeaseLostError):
            workspace.publish_failure(failure)
        self._release()

    async def _run_federation(self, workspace: Workspace) -> None:
        allocation = self._allocation
        federation = LocalFederation(
            FederationOptions(
                run=self._job.cell.run,
                directory=workspace.directory.path,
                processes=allocation.processes,
                threads=allocation.threads,
                data_dir=self._job.data_dir,
                gpus=allocation.gpus,
                gpu_share=allocation.gpu_share,
                track=self._job.track,
            )
        )
        try:
            async with federation, aclosing(federation.statuses()) as statuses:
                async for status in statuses:
                    self._update(status)
                    if workspace.is_copied and self._is_copy_due(status):
                        await self._copy(workspace, federation)
        finally:
            with suppress(OSError):  # a full disk fails the cell elsewhere, with its cause
                workspace.directory.add_cost(federation.core_seconds)
        federation.summary()  # raises if the server was stopped before the run had ended

    def _update(self, status: pb.RunStatus) -> None:
        if status.phase != pb.PHASE_WAITING:
            self._rounds = rounds_done(status)
            self._accuracy, self._clients = mean_accuracy(status), status.accuracy_clients
            self._report()

    def _report(self) -> None:
        node = self._lease.record.node
        self._progress(CellProgressReport(node=node, attempt=self._lease.epoch, rounds=self._rounds))

    def _is_copy_due(self, status: pb.RunStatus) -> bool:
        is_new = status.round >= self._copied_rounds + self._job.copy_rounds
        return is_new and status.round < self._job.cell.run.rounds and time.monotonic() >= self._next_copy

    async def _copy(self, workspace: Workspace, federation: LocalFederation) -> None:
        started, rounds = time.monotonic(), int(self._rounds)
        try:
            with suppress(FreezeError):  # a later round is copied; without any copy a lost cell begins again
                await _uninterrupted(workspace.copy, federation.frozen)
        except OSError as error:  # --out may answer again
            log.warning("%s: the state after round %d was not copied: %s", self._job.cell.id, rounds, error)
        self._copied_rounds = rounds
        self._next_copy = time.monotonic() + _COPY_SHARE * (time.monotonic() - started)

    async def _renew(self, running: asyncio.Task[Any]) -> None:
        while True:
            await asyncio.sleep(self._lease.renewal_seconds)
            try:
                await asyncio.to_thread(self._lease.renew, self._rounds, self._accuracy, self._clients)
            except LeaseLostError as error:
                self._lost = error
                running.cancel()
                return

    def _leave_to_others(self, workspace: Workspace) -> None:
        with suppress(OSError, FedDBPError):  # they begin with the copy before it, if there is one
            if workspace.is_copied and any((workspace.directory.path / "server").glob("*")):
                workspace.copy()
        self._release()

    def _release(self) -> None:
        with suppress(OSError, LeaseLostError):
            self._lease.release()


async def _uninterrupted(work: Callable[..., Result], *arguments: object) -> Result:
    """Calls a function in a thread, while leases are renewed; cancellations take effect when it has returned.

    So nothing removes the directory that it works in. The second of two cancellations is delivered at the next await.
    """
    task = asyncio.create_task(asyncio.to_thread(work, *arguments))
    cancellations = 0
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancellations += 1
    if not cancellations:
        return task.result()
    running = asyncio.current_task()
    assert running is not None
    if cancellations > 1:
        running.cancel()
    raise asyncio.CancelledError from task.exception()


async def wait_until_released(locks: Iterable[Path], patience: timedelta) -> None:
    """Waits for processes of a killed runner, which its guards stop with a grace period."""
    deadline = time.monotonic() + patience.total_seconds()
    for path in locks:
        while is_locked(path):
            if time.monotonic() >= deadline:
                raise CellInUseError(f"a process of an earlier runner still uses {path.parent}")
            await asyncio.sleep(_POLL_SECONDS)
