"""What a cell has on disk: its configuration, the federation's state while it runs, its results or why there are none.

cells/ID/config.json     the run's configuration, from the moment it is begun
cells/ID/server, clients state of the federation, removed when the results are kept
cells/ID/logs            of every process
cells/ID/metrics.jsonl, summary.json   once it is done; the summary last, and so the sign of it
cells/ID/failure.json    why the last attempt failed
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

from feddbp_common.atomic_files import replace_text
from feddbp_common.config.nested import dotted
from feddbp_common.config.run import RunConfig
from feddbp_common.errors import FedDBPError
from feddbp_common.file_lock import FileLock, is_locked
from feddbp_lab.processes.local_federation import ProcessFailedError
from feddbp_lab.results.run_results import METRICS_NAME, SUMMARY_NAME, MetricsTail, RunResults, weighted_accuracy

_CONFIG_NAME: Final = "config.json"
_FAILURE_NAME: Final = "failure.json"
_LOCK_NAME: Final = ".running"
_STATE_DIRS: Final = ("server", "clients")
FINISHED: Final = "finished"
_ANEW: Final = "remove the cell's folder to run it anew"


class CellState(StrEnum):
    """Where a cell stands."""

    WAITING = "waiting"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    DONE = "done"


class CellMismatchError(FedDBPError):
    """The folder of a cell holds another run than its name says."""


class DamagedCellError(FedDBPError):
    """A file of a cell is not what was once written."""

    @classmethod
    def of_results(cls, cause: Exception) -> Self:
        return cls(f"its results cannot be read ({type(cause).__name__}: {cause}); {_ANEW}")


class RunNotFinishedError(FedDBPError):
    """The federation ended, but not well."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a cell has no results."""

    cause: str
    exit_code: int | None = None
    last_lines: tuple[str, ...] = ()

    @classmethod
    def of(cls, error: Exception) -> Failure:
        if isinstance(error, ProcessFailedError):
            _, said, reason = (error.last_lines or [""])[-1].partition(": error: ")
            cause = f"{reason} ({error.name}, exit code {error.code})" if said else str(error)
            return cls(cause=cause, exit_code=error.code, last_lines=tuple(error.last_lines))
        return cls(cause=str(error) or repr(error))


@dataclass(frozen=True, kw_only=True)
class CellProgress:
    """How far a cell is that was begun."""

    completed_rounds: int
    rounds: int
    accuracy: float | None
    """Over all clients' test samples after the completed rounds; none before anything was evaluated."""


@dataclass(frozen=True)
class CellDir:
    path: Path

    @property
    def state(self) -> CellState:
        if (self.path / SUMMARY_NAME).exists():
            return CellState.DONE
        if not (self.path / _CONFIG_NAME).exists():
            return CellState.WAITING
        if is_locked(self.path / _LOCK_NAME):
            return CellState.RUNNING
        return CellState.FAILED if (self.path / _FAILURE_NAME).exists() else CellState.INTERRUPTED

    def lock(self) -> FileLock:
        """Marks the cell as running while it is held."""
        self.path.mkdir(parents=True, exist_ok=True)
        # the runner's own lock keeps others out: this one is only ever taken for an instant, by a query
        return FileLock(self.path / _LOCK_NAME, wait=True)

    def process_locks(self) -> list[Path]:
        """The lock files of the server and the clients, which may outlive a runner that was killed."""
        return [self.path / "server" / "server.lock", *self.path.glob("clients/*/*/daemon.lock")]

    def begin(self, run: RunConfig) -> None:
        """Makes sure that what is to be taken up is this run, and that it can still come to a good end."""
        config = self.path / _CONFIG_NAME
        told = run.model_dump(mode="json")
        if config.exists():
            _check_same(self._config(), told, config)
        else:
            replace_text(config, json.dumps(told, indent=2) + "\n")
        (self.path / _FAILURE_NAME).unlink(missing_ok=True)
        if (self.path / "server" / SUMMARY_NAME).exists() and self._outcome() != FINISHED:
            # such a run is over for its server: it can only be begun again
            self._drop_state()

    def finish(self, *, keep_state: bool) -> RunResults:
        """Keeps the results of a federation that has ended, or raises RunNotFinishedError."""
        summary = json.loads((self.path / "server" / SUMMARY_NAME).read_text(encoding="utf-8"))
        if summary["outcome"] != FINISHED:
            raise RunNotFinishedError(f"the run {summary['outcome']}: {summary['reason']}")
        for name in (METRICS_NAME, SUMMARY_NAME):
            replace_text(self.path / name, (self.path / "server" / name).read_text(encoding="utf-8"))
        self.tidy(keep_state=keep_state)
        return self.results()

    def tidy(self, *, keep_state: bool) -> None:
        """Removes what a cell that is done needs no more, unless that was seen to before.

        A runner that is killed just after the summary was written leaves this to the next.
        """
        if not (self.path / _LOCK_NAME).exists():
            return
        if not keep_state:
            self._drop_state()
        (self.path / _LOCK_NAME).unlink()

    def fail(self, failure: Failure) -> None:
        replace_text(self.path / _FAILURE_NAME, json.dumps(vars(failure), indent=2) + "\n")

    def failure(self) -> Failure | None:
        try:
            told = json.loads((self.path / _FAILURE_NAME).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return Failure(cause=told["cause"], exit_code=told["exit_code"], last_lines=tuple(told["last_lines"]))

    def results(self) -> RunResults:
        """Of a cell that is done; raises DamagedCellError where they cannot be read."""
        try:
            return RunResults.read(self.path)
        except (OSError, ValueError, KeyError) as error:
            raise DamagedCellError.of_results(error) from None

    def best_accuracy(self) -> float | None:
        """Of a cell that is done, in its best round; none if nothing was evaluated."""
        try:
            best = json.loads((self.path / SUMMARY_NAME).read_text(encoding="utf-8"))["accuracy"]["best"]
            return float(best["weighted"]) if best else None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DamagedCellError.of_results(error) from None

    def progress(self) -> CellProgress:
        """Of a cell that was begun and is not done."""
        config = self._config()
        lines = MetricsTail(self.path / "server" / METRICS_NAME).new_lines()
        reports = Counter(line["round"] for line in lines)
        complete = max((number for number, count in reports.items() if count >= config["clients"]), default=None)
        newest = [line for line in lines if line["round"] == complete]
        return CellProgress(completed_rounds=complete or 0, rounds=config["rounds"], accuracy=weighted_accuracy(newest))

    def _outcome(self) -> str:
        """Of the federation whose state is here; empty if that cannot be read."""
        try:
            return str(json.loads((self.path / "server" / SUMMARY_NAME).read_text(encoding="utf-8"))["outcome"])
        except (ValueError, KeyError):
            return ""

    def _config(self) -> dict[str, Any]:
        path = self.path / _CONFIG_NAME
        try:
            config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DamagedCellError(f"{path} cannot be read ({error}); {_ANEW}") from None
        return config

    def _drop_state(self) -> None:
        for name in _STATE_DIRS:
            if (self.path / name).exists():
                shutil.rmtree(self.path / name)


def _check_same(stored: dict[str, Any], given: dict[str, Any], path: Path) -> None:
    there, here = dotted(stored), dotted(given)
    for name in sorted({*there, *here}):
        if there.get(name) != here.get(name):
            raise CellMismatchError(
                f"{path} is of another run ({name} is {there.get(name)!r} there and {here.get(name)!r} here); {_ANEW}"
            )
