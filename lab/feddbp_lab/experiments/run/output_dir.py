"""The output directory of experiments: their plans, the cells they share, and the report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from feddbp_common.artifacts import RUNNER_LOCK_NAME
from feddbp_common.atomic_files import replace_text
from feddbp_common.config.diagnostics import FieldError
from feddbp_common.errors import ConfigurationError
from feddbp_common.file_lock import FileLock, LockHeldError, is_locked
from feddbp_lab.experiments.plan import Plan
from feddbp_lab.experiments.run.cell_dir import CellDir
from feddbp_lab.experiments.spec import BUILT_IN

_PLANS: Final = "experiments"


@dataclass(frozen=True)
class OutputDir:
    path: Path

    @classmethod
    def open_existing(cls, path: Path) -> OutputDir:
        output = cls(path)
        if not output.plans():
            raise ConfigurationError(f"{path}: no experiment has been run here")
        return output

    def lock(self) -> FileLock:
        """Creates the directory if there is none, and keeps other runners out of it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / RUNNER_LOCK_NAME)
        except LockHeldError as error:
            raise ConfigurationError(f"another runner (process {error.owner or 'unknown'}) uses {self.path}") from None
        except OSError as error:
            raise ConfigurationError(f"--out: {error.filename}: {error.strerror}") from None
        lock.record_owner()
        return lock

    @property
    def has_runner(self) -> bool:
        return is_locked(self.path / RUNNER_LOCK_NAME)

    def cell_dir(self, cell_id: str) -> CellDir:
        return CellDir(self.path / "cells" / cell_id)

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

    def save_plan(self, plan: Plan) -> None:
        path = self._plan_path(plan.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, plan.model_dump_json(indent=1) + "\n")

    def _plan_path(self, name: str) -> Path:
        return self.path / _PLANS / f"{name}.json"

    def _read_plan(self, path: Path) -> Plan:
        try:
            return Plan.model_validate_json(path.read_text(encoding="utf-8"))
        except ValidationError as error:
            raise ConfigurationError(
                f"{path}: not a plan of this version ({FieldError.first_in(error)}); "
                "remove it and run the experiment again, finished cells are kept"
            ) from None
