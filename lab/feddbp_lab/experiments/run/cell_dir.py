"""A cell's directory: its configuration, the federation's state while it runs, and its results or its failure.

cells/ID/config.json     the run's configuration, written before the first attempt
cells/ID/server, clients state of the federation, removed once the cell has results
cells/ID/certs           certificates of its parties, likewise; only with secure sums
cells/ID/logs            of every process
cells/ID/metrics.jsonl, summary.json   the results; the summary is written last and marks the cell as done
cells/ID/cost.json       CPU time of all attempts, their number; machine, kind of CPU and software of the last, and
                         `earlier`: kinds of CPU and software of other attempts, where they differ
cells/ID/lease-*.json    which process works on the cell (`lease`)
cells/ID/copy-*          copies of the state of a cell that runs on another disk (`copies`)
cells/ID/failure.json    why the last attempt failed
"""

from __future__ import annotations

import json
import platform
import shutil
from collections import Counter
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from feddbp_common.artifacts import (
    CELL_CONFIG_NAME,
    CELL_COST_NAME,
    CELL_FAILURE_NAME,
    CELL_LOCK_NAME,
    CLIENT_LOCK_NAME,
    METRICS_NAME,
    SERVER_LOCK_NAME,
    SUMMARY_NAME,
)
from feddbp_common.atomic_files import replace_text
from feddbp_common.config.identity import canonical
from feddbp_common.config.nested import dotted, first_difference
from feddbp_common.config.run import RunConfig
from feddbp_common.cpu_cores import processor
from feddbp_common.errors import FedDBPError
from feddbp_common.evaluation import CountedEvaluations
from feddbp_common.file_lock import FileLock, is_locked
from feddbp_common.printable import printable
from feddbp_lab.experiments.run.lease import LeaseRecord, boot_id, current_lease
from feddbp_lab.experiments.run.store import DirectoryStore
from feddbp_lab.processes.local_federation import ProcessFailedError
from feddbp_lab.results.damage import DAMAGE, damage_as_error
from feddbp_lab.results.protocol import Reported
from feddbp_lab.results.run_results import (
    EvaluationLine,
    RunResults,
    accuracy_after,
    has_metrics,
    has_trained,
    read_object,
    read_summary,
)
from feddbp_server.reporting.json_lines import JsonLines

STATE_DIRS: Final = ("server", "clients", "certs")
FINISHED: Final = "finished"
_DISTRIBUTIONS: Final = ("feddbp", "numpy", "torch", "torchvision")
_REMEDY: Final = "remove the cell's directory to run it again"


class CellState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    DONE = "done"


class CellMismatchError(FedDBPError):
    """The directory of a cell holds another run."""


class DamagedCellError(FedDBPError):
    """A file of a cell cannot be read, or lacks what was written."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}; {_REMEDY}")


class RunNotFinishedError(FedDBPError):
    """The run of a cell failed or was stopped."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a cell has no results; its texts come from other processes, and are made printable."""

    cause: str
    exit_code: int | None = None
    last_lines: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "cause", printable(self.cause))
        object.__setattr__(self, "last_lines", tuple(map(printable, self.last_lines)))

    @classmethod
    def of(cls, error: Exception) -> Failure:
        if isinstance(error, ProcessFailedError):
            cause = f"{error.reason} ({error.name}, exit code {error.code})" if error.reason else str(error)
            return cls(cause=cause, exit_code=error.code, last_lines=tuple(error.last_lines))
        return cls(cause=str(error) or repr(error))

    def to_json(self) -> str:
        """The content of its file."""
        return json.dumps(vars(self), indent=2) + "\n"


@dataclass(frozen=True, kw_only=True)
class Damage(Failure):
    """Why the results of a cell that is done cannot be read."""


@dataclass(frozen=True, kw_only=True)
class CellProgress:
    """Progress of a cell that was started."""

    completed_rounds: int
    rounds: int
    accuracy: float | None
    """Over the clients' test samples after the completed rounds; None before the first evaluation after training."""
    clients: int
    """Over how many clients it is."""
    expected_clients: int


@dataclass(frozen=True)
class CellDir:
    path: Path

    @property
    def state(self) -> CellState:
        if (self.path / SUMMARY_NAME).exists():
            return CellState.DONE
        has_config = (self.path / CELL_CONFIG_NAME).exists()
        if has_config and self.is_running:
            return CellState.RUNNING
        if (self.path / CELL_FAILURE_NAME).exists():
            return CellState.FAILED  # before the configuration was written, too
        return CellState.INTERRUPTED if has_config else CellState.WAITING

    @property
    def is_running(self) -> bool:
        """Whether a process works on the cell: one of this machine holds its lock, others renew their lease."""
        if is_locked(self.path / CELL_LOCK_NAME):
            return True
        lease = self.lease()
        return lease is not None and lease.is_fresh and lease.boot != boot_id()

    def lease(self) -> LeaseRecord | None:
        """Of the newest attempt at the cell; None before the first, and once the cell is done."""
        return current_lease(DirectoryStore(self.path.parents[1]), self.path.name)

    def lock(self) -> FileLock:
        """Keeps other processes of this machine out; raises LockHeldError if one has the cell."""
        self.path.mkdir(parents=True, exist_ok=True)
        return FileLock(self.path / CELL_LOCK_NAME)

    def process_locks(self) -> list[Path]:
        """The lock files of the server and the clients, which may outlive a runner that was killed."""
        return [self.path / "server" / SERVER_LOCK_NAME, *self.path.glob(f"clients/*/*/{CLIENT_LOCK_NAME}")]

    def prepare(self, run: RunConfig) -> None:
        """Checks that the state in the directory is of this run, and removes that of a run that cannot be resumed."""
        config = self.path / CELL_CONFIG_NAME
        content = canonical(run)  # what cells of earlier versions hold, too
        if config.exists():
            _check_same(self._config(), content, config)
        else:
            replace_text(config, json.dumps(content, indent=2) + "\n")
        (self.path / CELL_FAILURE_NAME).unlink(missing_ok=True)
        if (self.path / "server" / SUMMARY_NAME).exists() and self._outcome() != FINISHED:
            # the server does not resume a run that failed or was stopped
            self._remove_state()
            (self.path / CELL_COST_NAME).unlink(missing_ok=True)

    def collect_results(self, *, keep_state: bool) -> RunResults:
        """Copies the results of a finished federation; raises RunNotFinishedError if its run failed or was stopped."""
        with self.damage_as_error():
            summary = read_object(self.path / "server" / SUMMARY_NAME)
            if summary["outcome"] != FINISHED:
                raise RunNotFinishedError(f"the run {summary['outcome']}: {summary['reason']}")
        for name in (METRICS_NAME, SUMMARY_NAME):
            replace_text(self.path / name, (self.path / "server" / name).read_text(encoding="utf-8"))
        self.clean_up(keep_state=keep_state)
        return self.results()

    def clean_up(self, *, keep_state: bool) -> None:
        """Removes the state of a cell that is done, once: the lock file shows that it is still to do.

        A runner that is killed after it has written the summary leaves this to the next on its machine, or to one
        elsewhere that runs for longer than its lease.
        """
        if not (self.path / CELL_LOCK_NAME).exists():
            return
        if not keep_state:
            self._remove_state()
        (self.path / CELL_LOCK_NAME).unlink()

    def add_cost(self, core_seconds: float) -> None:
        """Adds the CPU time of an attempt; that of a runner that was killed is not known."""
        cost = self._cost() | {"core_seconds": round((self.core_seconds() or 0.0) + core_seconds, 2)}
        replace_text(self.path / CELL_COST_NAME, json.dumps(cost) + "\n")

    def record_attempt(self, attempt: int, node: str) -> None:
        """Records the number of the attempt, where it runs, and the CPU and versions that bits may depend on.

        Those of earlier attempts, whose state it may resume, are kept where they differ.
        """
        cost, here = self._cost(), {"processor": processor(), "software": installed_versions()}
        # unknown of attempts that an earlier version began
        before = [*_list_in(cost, "earlier"), *([{name: cost.get(name) for name in here}] if cost else [])]
        earlier = [found for place, found in enumerate(before) if found != here and found not in before[:place]]
        cost |= {"attempts": attempt, "node": node, **here, "earlier": earlier}
        if not earlier:
            del cost["earlier"]
        replace_text(self.path / CELL_COST_NAME, json.dumps(cost) + "\n")

    def core_seconds(self) -> float | None:
        """CPU time of the cell so far; None if it was not recorded."""
        try:
            return float(self._cost()["core_seconds"])
        except (ValueError, KeyError, TypeError):
            return None

    def attempts(self) -> int | None:
        """How often the cell was begun; None if it was not recorded, as by earlier versions."""
        recorded = self._cost().get("attempts")
        return recorded if isinstance(recorded, int) else None

    def node(self) -> str | None:
        """The machine of the last attempt; None if it was not recorded."""
        recorded = self._cost().get("node")
        return recorded if isinstance(recorded, str) else None

    def _cost(self) -> dict[str, Any]:
        try:
            return read_object(self.path / CELL_COST_NAME)
        except DAMAGE:
            return {}

    def record_failure(self, failure: Failure) -> None:
        replace_text(self.path / CELL_FAILURE_NAME, failure.to_json())

    def failure(self) -> Failure | None:
        """Why the last attempt failed; None if it did not."""
        try:
            content = read_object(self.path / CELL_FAILURE_NAME)
            lines = tuple(map(str, content["last_lines"]))
            return Failure(cause=str(content["cause"]), exit_code=content["exit_code"], last_lines=lines)
        except FileNotFoundError:
            return None
        except DAMAGE:
            return Failure(cause=f"failed, for a reason that cannot be read in {CELL_FAILURE_NAME}")

    def results(self) -> RunResults:
        """The results of a cell that is done; raises DamagedCellError if they cannot be read."""
        with self.damage_as_error():
            return RunResults.read(self.path)

    def reported(self) -> Reported:
        """The result of a cell that is done, by the protocol of its run; raises as `results` does.

        Of the metrics it tells only that they are there.
        """
        with self.damage_as_error():
            if not has_metrics(self.path):
                raise ValueError(f"{METRICS_NAME} is missing")
            return Reported.of(read_summary(self.path))

    def damage_as_error(self) -> AbstractContextManager[None]:
        """Raises DamagedCellError for files that cannot be read or lack something."""
        return damage_as_error(f"cells/{self.path.name}", DamagedCellError)

    def progress(self) -> CellProgress:
        """The progress of a cell that was started and is not done; raises as `results` does."""
        with self.damage_as_error():
            return self._progress(RunConfig.model_validate(self._config()))

    def _progress(self, run: RunConfig) -> CellProgress:
        if not (self.path / "server").exists() and (lease := self.lease()) is not None:
            # its state is on the disk of the node that has the cell
            return CellProgress(
                completed_rounds=int(lease.rounds_done),
                rounds=run.rounds,
                accuracy=lease.accuracy,
                clients=lease.clients,
                expected_clients=run.clients,
            )
        lines = JsonLines.read(self.path / "server" / METRICS_NAME, _evaluation).entries
        reports = Counter(line.round for line in lines)
        complete = max((number for number, count in reports.items() if count >= run.clients_in(number)), default=0)
        evaluations = CountedEvaluations[EvaluationLine]()
        for line in sorted(lines, key=lambda line: line.round):
            if line.round <= complete:
                evaluations.add(line)
        found = accuracy_after(evaluations, complete)
        return CellProgress(
            completed_rounds=complete,
            rounds=run.rounds,
            accuracy=found.accuracy if found else None,
            clients=found.clients if found else 0,
            expected_clients=run.clients,
        )

    def _outcome(self) -> str:
        """The outcome in the server's summary; empty if it cannot be read."""
        try:
            return str(read_object(self.path / "server" / SUMMARY_NAME)["outcome"])
        except DAMAGE:
            return ""

    def config(self) -> dict[str, Any] | None:
        """The canonical configuration of the run; None before the first attempt. Raises as `results` does."""
        return self._config() if (self.path / CELL_CONFIG_NAME).exists() else None

    def _config(self) -> dict[str, Any]:
        with self.damage_as_error():
            return read_object(self.path / CELL_CONFIG_NAME)

    def _remove_state(self) -> None:
        for name in STATE_DIRS:
            if (self.path / name).exists():
                shutil.rmtree(self.path / name)


def _list_in(content: dict[str, Any], name: str) -> list[Any]:
    found = content.get(name)
    return found if isinstance(found, list) else []


def installed_versions() -> dict[str, str]:
    """Of what the bits of a result may depend on."""
    found = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _evaluation(line: dict[str, Any]) -> EvaluationLine:
    """What of a line of metrics tells the progress; raises for a damaged one."""
    return EvaluationLine(
        {
            "client": int(line["client"]),
            "round": int(line["round"]),
            "accuracy": float(line["accuracy"]),
            "test_samples": int(line["test_samples"]),
            "trained": has_trained(line),
        }
    )


def _check_same(stored: dict[str, Any], given: dict[str, Any], path: Path) -> None:
    if (name := first_difference(stored, given)) is not None:
        there, here = dotted(stored).get(name), dotted(given).get(name)
        raise CellMismatchError(f"{path} is of another run ({name} is {there!r} there and {here!r} here); {_REMEDY}")
