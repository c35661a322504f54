"""Runs cells on a Ray cluster: an actor per cell, on the node that Ray chooses; inside of a cell nothing changes.

The only module that imports ray, and only once `--executor ray` is given.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Self

from feddbp_common.cpu_cores import usable_cores
from feddbp_common.errors import ConfigurationError, one_line
from feddbp_common.humanize import quantity
from feddbp_common.optional_deps import require
from feddbp_common.version import VERSION
from feddbp_lab.experiments.cell import Cell
from feddbp_lab.experiments.resources import Allocation, Request, describe
from feddbp_lab.experiments.run.attempt import (
    CellJob,
    CellOutcome,
    CellProgressReport,
    Progress,
    Verdict,
    attempt_cell,
)
from feddbp_lab.experiments.run.cell_dir import Failure
from feddbp_lab.experiments.run.executor import Executor

_POLL_SECONDS: Final = 1.0
_SUBREAPER: Final = "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper"
_QUIET: Final = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0"}
_OBJECT_STORE: Final = 80_000_000
"""Bytes, the least that Ray accepts: no results pass through Ray."""
_CONNECT_SECONDS: Final = 10.0
_STOP_SECONDS: Final = 60.0
"""How long a cell may take to stop in order, and to copy its state."""


class CellWorker:
    """The actor: runs one attempt at a cell in its process."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._latest: CellProgressReport | None = None
        self._attempt: asyncio.Task[CellOutcome] | None = None

    async def run(self, job: CellJob, allocation: Allocation) -> CellOutcome:
        """The outcome; a cancelled attempt counts as one that lost its node."""
        if self.version != VERSION:
            cause = f"feddbp {VERSION} is installed on {socket.gethostname()}, and {self.version} runs the experiment"
            return CellOutcome(verdict=Verdict.FAILED, failure=Failure(cause=cause))
        # numbered among the GPUs that Ray lets this process see
        seen = replace(allocation, gpus=tuple(range(_assigned_gpus())))
        self._attempt = asyncio.create_task(attempt_cell(job, seen, self._show))
        try:
            return await self._attempt
        except asyncio.CancelledError:
            return CellOutcome(verdict=Verdict.LOST)

    async def progress(self) -> CellProgressReport | None:
        return self._latest

    async def stop(self) -> None:
        """Stops the attempt in order; a second call kills its processes."""
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.wait({self._attempt})

    def _show(self, progress: CellProgressReport) -> None:
        self._latest = progress


def _assigned_gpus() -> int:
    import ray

    return len(ray.get_gpu_ids())


@dataclass(frozen=True, kw_only=True)
class _Node:
    cpus: float
    gpus: float
    memory: float


@dataclass(kw_only=True)
class RayExecutor(Executor):
    """Submits as many cells at a time as the cluster has room for; Ray decides where each runs."""

    address: str | None = None
    """A running Ray; None: RAY_ADDRESS or, without it, a Ray of this machine's own that ends with the runner."""
    jobs: int | None = None

    def __post_init__(self) -> None:
        require("--executor ray", ["ray"], extra="ray")
        self._ray: Any = None
        self._running = 0
        self._listed: list[_Node] = []
        self._listed_at = -math.inf

    async def __aenter__(self) -> Self:
        self._ray = await asyncio.to_thread(_connect, self.address)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._ray.shutdown)

    @property
    def description(self) -> str:
        nodes = self._nodes()
        total = describe(sum(node.cpus for node in nodes), sum(node.gpus for node in nodes), 0)
        return f"on {quantity(len(nodes), 'Ray node')} with {total}"

    def check(self, cells: Iterable[Cell]) -> None:
        nodes = self._nodes()
        for cell in cells:
            request = _request(cell)
            if not any(request.fits(node.cpus, node.gpus, node.memory) for node in nodes):
                raise ConfigurationError(f"a cell asks for {request}; {_largest(nodes, request)}")

    def allocate(self, cell: Cell, *, cells_left: int) -> Allocation | None:
        request = _request(cell)
        together = sum(_cells_on(node, request) for node in self._nodes())
        if self._running >= min(self.jobs or together, max(1, together)):
            return None
        self._running += 1
        return Allocation(request=request)

    def release(self, allocation: Allocation) -> None:
        self._running -= 1

    async def run(self, job: CellJob, allocation: Allocation, progress: Progress) -> CellOutcome:
        worker, has_answered = self._worker(allocation.request), False
        running = asyncio.ensure_future(_result(worker.run.remote(job, allocation)))
        try:
            while not running.done():
                await asyncio.wait({running}, timeout=_POLL_SECONDS)
                if not running.done():
                    has_answered |= await self._poll(worker, progress)
            outcome: CellOutcome = running.result()
            return outcome
        except asyncio.CancelledError:
            if has_answered:  # else it waits for a node that has room
                await self._stop(worker)
            raise
        except self._ray.exceptions.RayError as error:
            return self._outcome_of(error)
        finally:
            running.cancel()
            self._ray.kill(worker)

    def _worker(self, request: Request) -> Any:
        remote = self._ray.remote(CellWorker)
        options: dict[str, Any] = {"num_cpus": request.cpus, "num_gpus": request.gpus, "max_restarts": 0}
        if request.memory:
            options["memory"] = request.memory
        return remote.options(**options).remote(VERSION)

    async def _poll(self, worker: Any, progress: Progress) -> bool:
        """Asks for the progress; false if the worker waits for its node, or has lost it."""
        with suppress(self._ray.exceptions.RayError, TimeoutError):
            latest = await asyncio.wait_for(_result(worker.progress.remote()), _POLL_SECONDS)
            if latest is not None:
                progress(latest)
            return True
        return False

    async def _stop(self, worker: Any) -> None:
        """Stops a cell in order; a second cancellation, in here, kills it."""
        with suppress(self._ray.exceptions.RayError, TimeoutError):
            await asyncio.wait_for(_result(worker.stop.remote()), _STOP_SECONDS)

    def _outcome_of(self, error: Exception) -> CellOutcome:
        exceptions = self._ray.exceptions
        lost = (exceptions.ActorDiedError, exceptions.ActorUnavailableError, exceptions.NodeDiedError)
        if isinstance(error, lost) and "creation task" not in str(error):
            return CellOutcome(verdict=Verdict.LOST)
        first_lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        cause = f"Ray could not run the cell: {first_lines[-1] if first_lines else type(error).__name__}"
        return CellOutcome(verdict=Verdict.FAILED, failure=Failure(cause=cause, last_lines=tuple(first_lines[-12:])))

    def _nodes(self) -> list[_Node]:
        if time.monotonic() > self._listed_at + _POLL_SECONDS:
            self._listed, self._listed_at = self._alive_nodes(), time.monotonic()
        return self._listed

    def _alive_nodes(self) -> list[_Node]:
        return [
            _Node(
                cpus=node["Resources"].get("CPU", 0.0),
                gpus=node["Resources"].get("GPU", 0.0),
                memory=node["Resources"].get("memory", 0.0),
            )
            for node in self._ray.nodes()
            if node["Alive"]
        ]


def _connect(address: str | None) -> Any:
    """Connects to a cluster, or starts a Ray on this machine whose workers take their children with them."""
    os.environ.setdefault(_SUBREAPER, "true")
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    if address is not None:
        _check_reachable(address)
    own = {"num_cpus": usable_cores(), "object_store_memory": _OBJECT_STORE, "include_dashboard": False}
    is_own = address is None and not _is_running(ray)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", **(own if is_own else {})}
    try:
        ray.init("local" if is_own else address or "auto", **options)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise ConfigurationError(f"--ray-address {address or 'auto'}: {one_line(error, first=True)}") from None
    return ray


def _check_reachable(address: str) -> None:
    """Raises ConfigurationError if nothing listens at HOST:PORT: Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or "/" in host:
        return  # auto, or an address of another form
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigurationError(f"--ray-address {address}: no Ray answers there: {error}") from None


def _is_running(ray: Any) -> bool:
    """Whether RAY_ADDRESS names a Ray, or one was started on this machine by `ray start`."""
    return "RAY_ADDRESS" in os.environ or bool(ray._private.services.find_gcs_addresses())


async def _result(reference: Any) -> Any:
    return await reference


def _request(cell: Cell) -> Request:
    return cell.resources.request(Request())


def _cells_on(node: _Node, request: Request) -> int:
    counts = [int(node.cpus / request.cpus + 1e-6)]
    if request.gpus:
        each = int(1 / request.gpus + 1e-6)
        counts.append(int(node.gpus) * each if request.gpus < 1 else int(node.gpus / request.gpus))
    if request.memory:
        counts.append(int(node.memory / request.memory))
    return min(counts)


def _largest(nodes: list[_Node], request: Request) -> str:
    if not nodes:
        return "the Ray cluster has no node"
    sizes = sorted({(node.gpus, node.cpus, node.memory) for node in nodes}, reverse=True)
    texts = dict.fromkeys(describe(cpus, gpus, memory if request.memory else 0) for gpus, cpus, memory in sizes)
    listed = "; ".join(list(texts)[:3])
    return f"no node of the Ray cluster has as much: {quantity(len(nodes), 'node')}, {listed}"
