"""The options of `feddbp experiment`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from feddbp_common.config.types import FrozenModel, parse_numbers
from feddbp_common.cpu_cores import usable_cores
from feddbp_common.errors import ConfigurationError
from feddbp_lab.experiments.profiles import PROFILES, profile_named
from feddbp_lab.experiments.run.runner import Machine


class SelectionConfig(FrozenModel):
    """Experiment: which runs, and where their results are kept."""

    out: Path | None = Field(
        None, description="directory of the results; experiments in the same directory share cells"
    )
    profile: str | None = Field(
        None, description=f"size of the runs: {' or '.join(PROFILES)} (default: quick; for a file, none)"
    )
    seeds: tuple[int, ...] = Field((), description="seeds to run, e.g. 0,1,2 (default: those of the experiment)")
    override: dict[str, Any] = Field({}, description="an option for all runs, e.g. rounds=3; may be repeated")
    dry_run: bool = Field(False, description="list the cells and exit")

    @field_validator("seeds", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return parse_numbers(value, "--seeds")

    @field_validator("profile")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        if value is not None:
            profile_named(value)
        return value


class ExecutionConfig(FrozenModel):
    """Machine: the resources the runs use."""

    jobs: int | None = Field(
        None, ge=1, description="cells that run at the same time; default one per core, or one per GPU"
    )
    gpus: tuple[int, ...] = Field(
        (), description="CUDA devices the cells are spread over, e.g. 0,1,2,3 (default: the CPU)"
    )
    data_dir: Path = Field(Path("data"), description="where public data sets are found or downloaded to")
    keep_state: bool = Field(False, description="keep checkpoints and databases of cells that are done")

    @field_validator("gpus", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return parse_numbers(value, "--gpus")

    @model_validator(mode="after")
    def _room_for_every_gpu(self) -> Self:
        if self.jobs is not None and self.jobs < len(self.gpus):
            raise ConfigurationError(f"--jobs {self.jobs} leaves some of the {len(self.gpus)} GPUs without a cell")
        return self

    @property
    def machine(self) -> Machine:
        cores = usable_cores()
        jobs = self.jobs or len(self.gpus) or cores
        return Machine(jobs=jobs, cores=cores, data_dir=self.data_dir.resolve(), gpus=self.gpus)


class ExperimentConfig(FrozenModel):
    """All options of `feddbp experiment run`."""

    what: SelectionConfig = SelectionConfig()
    where: ExecutionConfig = ExecutionConfig()
