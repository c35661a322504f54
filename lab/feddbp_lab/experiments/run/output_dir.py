"""The output directory of experiments: their plans, the cells they share, and the report."""

from __future__ import annotations

import errno
import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from feddbp_common.artifacts import PLANNING_LOCK_NAME, RUNNER_LOCK_NAME
from feddbp_common.atomic_files import replace_text
from feddbp_common.config.diagnostics import FieldError
from feddbp_common.config.identity import canonical
from feddbp_common.config.run import RunConfig
from feddbp_common.errors import ConfigurationError
from feddbp_common.file_lock import FileLock, LockHeldError, is_locked_or_shared
from feddbp_lab.experiments.cell import Cell
from feddbp_lab.experiments.plan import Plan
from feddbp_lab.experiments.resources import Resources
from feddbp_lab.experiments.run.cell_dir import CellDir
from feddbp_lab.experiments.run.mirror import Mirror
from feddbp_lab.experiments.run.store import DirectoryStore, Store, is_address
from feddbp_lab.experiments.spec import BUILT_IN
from feddbp_lab.results.damage import DAMAGE

_PLANS: Final = "experiments"
_CELLS: Final = "cells"
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@dataclass(frozen=True)
class OutputDir:
    """The directory, or of an address the local mirror of everything but the state of cells."""

    path: Path
    mirror: Mirror | None = field(default=None, compare=False)

    @classmethod
    def at(cls, out: str) -> OutputDir:
        """The results at a path, or at an fsspec address."""
        if not is_address(out):
            return cls(Path(out))
        # removed with the process
        directory = tempfile.TemporaryDirectory(prefix="feddbp-out-")
        mirror = Mirror(out, directory)
        try:
            mirror.refresh()
        except OSError as error:
            raise ConfigurationError(f"{mirror.address} cannot be read: {error.strerror or error}") from None
        return cls(mirror.path, mirror)

    @classmethod
    def open_existing(cls, out: str | Path) -> OutputDir:
        output = cls.at(str(out))
        if not output.plans():
            raise ConfigurationError(f"{output.name}: no experiment has been run here")
        return output

    @property
    def name(self) -> str:
        return self.mirror.address if self.mirror else str(self.path)

    @property
    def store(self) -> Store:
        return self.mirror.store if self.mirror else DirectoryStore(self.path)

    def refresh(self, cells: Iterable[str] | None = None) -> None:
        """Brings the mirror of an address up to date: these cells, or everything."""
        if self.mirror is not None:
            self.mirror.refresh(cells)

    def publish_report(self) -> str:
        """Shows the report, which was written to `report_dir`, to others; returns where."""
        if self.mirror is not None:
            self.mirror.upload(self.report_dir)
        return f"{self.name}/{self.report_dir.name}"

    @contextmanager
    def use(self) -> Iterator[None]:
        """Creates the directory if there is none. Several runners may use it, but none of an earlier version."""
        if self.mirror is not None:
            yield
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = _lock(self.path / RUNNER_LOCK_NAME, shared=True)
        except LockHeldError as error:
            raise ConfigurationError(
                f"a runner of an earlier version (process {error.owner or 'unknown'}) uses {self.path}"
            ) from None
        except OSError as error:
            raise ConfigurationError(f"--out: {error.filename}: {error.strerror}") from None
        with lock:
            yield

    def planning(self) -> AbstractContextManager[object]:
        """Keeps other runners of this machine from changing plans and reports at the same time."""
        return nullcontext() if self.mirror else _lock(self.path / PLANNING_LOCK_NAME, wait=True)

    @property
    def has_runner(self) -> bool:
        """Whether a runner uses the directory: one of this machine has its lock, others renew leases of cells."""
        if self.mirror is None and is_locked_or_shared(self.path / RUNNER_LOCK_NAME):
            return True
        return any(CellDir(path).is_running for path in (self.path / _CELLS).glob("*"))

    def cell_dir(self, cell_id: str) -> CellDir:
        return CellDir(self.path / _CELLS / cell_id)

    @property
    def report_dir(self) -> Path:
        return self.path / "report"

    def plans(self) -> list[Plan]:
        """Built-in experiments in their own order, then the others by name."""
        plans = [self._read_plan(path) for path in sorted((self.path / _PLANS).glob("*.json"))]
        return sorted(plans, key=lambda plan: BUILT_IN.index(plan.name) if plan.name in BUILT_IN else len(BUILT_IN))

    def plan(self, name: str) -> Plan | None:
        path = self._plan_path(name)
        return self._read_plan(path) if path.exists() else None

    def save_plan(self, plan: Plan, cells: Iterable[Cell] = ()) -> None:
        """Saves a plan and, for `feddbp experiment cell`, the configuration of each of its cells."""
        self._write(self._plan_path(plan.name), plan.model_dump_json(indent=1) + "\n")
        if listed := list(cells):
            self._save_cells(plan.name, listed)

    def planned_cells(self, name: str) -> list[Cell]:
        """The cells of a plan in their order; raises ConfigurationError if they were not saved with it."""
        if not (cells := self._listed_cells(name)):
            raise ConfigurationError(
                f"{self.name}: the cells of {name} are not listed here; run feddbp experiment plan again"
            )
        return cells

    def configs(self, plan: Plan) -> dict[str, dict[str, Any]]:
        """The canonical configurations of a plan's cells by their ids, of those that were begun or are listed."""
        listed = {cell.id: canonical(cell.run) for cell in self._listed_cells(plan.name)}
        begun = {cell_id: self.cell_dir(cell_id).config() for cell_id in plan.cell_ids}
        return listed | {cell_id: config for cell_id, config in begun.items() if config is not None}

    def update_planned_cells(self, plan: Plan, more: OutputDir) -> None:
        """Lists all cells of a plan that has grown by cells of another directory, if they are listed here at all."""
        if not self._cells_path(plan.name).exists():
            return
        known = {cell.id: cell for output in (self, more) for cell in output._listed_cells(plan.name)}
        if known.keys() >= {*plan.cell_ids}:
            self._save_cells(plan.name, [known[cell_id] for cell_id in plan.cell_ids])
        else:
            self._cells_path(plan.name).unlink()  # the numbers of its cells would be wrong

    def _listed_cells(self, name: str) -> list[Cell]:
        try:
            entries: list[dict[str, Any]] = json.loads(self._cells_path(name).read_text(encoding="utf-8"))
            return [
                Cell(RunConfig.model_validate(entry["run"]), Resources.model_validate(entry["resources"]))
                for entry in entries
            ]
        except DAMAGE:
            return []

    def _save_cells(self, name: str, cells: Iterable[Cell]) -> None:
        entries = [{"id": cell.id, "run": canonical(cell.run), "resources": _given(cell.resources)} for cell in cells]
        self._write(self._cells_path(name), json.dumps(entries) + "\n")

    def _write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, text)
        if self.mirror is not None:
            self.mirror.upload(path)

    def _plan_path(self, name: str) -> Path:
        return self.path / _PLANS / f"{name}.json"

    def _cells_path(self, name: str) -> Path:
        return self.path / _PLANS / _CELLS / f"{name}.json"

    def _read_plan(self, path: Path) -> Plan:
        try:
            return Plan.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise ConfigurationError(
                f"{path}: not a plan of this version ({FieldError.first_in(error)}); "
                "remove it and run the experiment again, finished cells are kept"
            ) from None


def _given(resources: Resources) -> dict[str, Any]:
    return resources.model_dump(mode="json", exclude_none=True)


def _lock(path: Path, *, wait: bool = False, shared: bool = False) -> AbstractContextManager[object]:
    """A file lock; nothing on a file system without locks, where the leases of cells have to do."""
    try:
        return FileLock(path, wait=wait, shared=shared)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return nullcontext()
        raise
