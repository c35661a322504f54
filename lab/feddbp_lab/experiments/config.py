"""The options of `feddbp experiment`."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from feddbp_common.config.types import CommaSeparated, Duration, FrozenModel, parse_numbers
from feddbp_common.cpu_cores import usable_cores
from feddbp_common.errors import ConfigurationError
from feddbp_lab.commands.options import TRACK_HELP
from feddbp_lab.experiments.profiles import PROFILES, profile_named
from feddbp_lab.experiments.resources import Resources, machine_memory
from feddbp_lab.trackers.sinks import sink_for


class SelectionConfig(FrozenModel):
    """Experiment: which runs, and where their results are kept."""

    out: str | None = Field(
        None,
        description="directory of the results, or an fsspec address; experiments in the same place share cells",
        json_schema_extra={"metavar": "DIR"},
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
    """Machine: where the runs take place, and what they may use."""

    executor: Literal["local", "ray"] = Field("local", description="run cells on this machine, or by Ray on a cluster")
    ray_address: str | None = Field(
        None,
        description="a running Ray: auto, or HOST:PORT (default: one that runs here, else one of the runner's own)",
    )
    jobs: int | None = Field(
        None, ge=1, description="cells that run at the same time; default one per core, or one per GPU"
    )
    gpus: tuple[int, ...] = Field(
        (), description="CUDA devices the cells are spread over, e.g. 0,1,2,3 (default: the CPU)"
    )
    data_dir: Path = Field(Path("data"), description="where public data sets are found or downloaded to")
    keep_state: bool = Field(False, description="keep checkpoints and databases of cells that are done")
    track: CommaSeparated = Field(
        (),
        description=f"experiment trackers to write every run to; {TRACK_HELP}",
        json_schema_extra={"metavar": "TRACKERS"},
    )
    retry_failed: bool = Field(False, description="also run cells that have failed")
    work_dir: Path | None = Field(
        None,
        description="disk for the state of running cells, which is copied to --out every few rounds "
        "(default: --out itself; with Ray or an address, the node's temporary directory)",
    )
    copy_rounds: int = Field(5, ge=1, description="rounds between copies of a cell's state to --out")
    lease: Duration = Field(
        timedelta(seconds=60),
        ge=timedelta(seconds=1),
        description="after this time without a sign of life, a cell's runner on another machine counts as dead",
    )

    @field_validator("gpus", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return parse_numbers(value, "--gpus")

    @field_validator("track")
    @classmethod
    def _known_trackers(cls, trackers: tuple[str, ...]) -> tuple[str, ...]:
        for tracker in trackers:
            sink_for(tracker)
        return trackers

    @model_validator(mode="after")
    def _room_for_every_gpu(self) -> Self:
        if self.jobs is not None and self.jobs < len(self.gpus):
            raise ConfigurationError(f"--jobs {self.jobs} leaves some of the {len(self.gpus)} GPUs without a cell")
        return self

    @model_validator(mode="after")
    def _fits_the_executor(self) -> Self:
        if self.executor == "ray" and self.gpus:
            raise ConfigurationError("--gpus is for this machine; with --executor ray give --num-gpus of a cell")
        if self.executor != "ray" and self.ray_address is not None:
            raise ConfigurationError("--ray-address needs --executor ray")
        return self

    @property
    def cores(self) -> int:
        return usable_cores()

    @property
    def machine_memory(self) -> int:
        return machine_memory()

    @property
    def local_jobs(self) -> int:
        return self.jobs or len(self.gpus) or self.cores


class ExperimentConfig(FrozenModel):
    """All options of `feddbp experiment run`."""

    what: SelectionConfig = SelectionConfig()
    where: ExecutionConfig = ExecutionConfig()
    cell: Resources = Resources()


class PlanConfig(FrozenModel):
    """All options of `feddbp experiment plan`."""

    what: SelectionConfig = SelectionConfig()
    cell: Resources = Resources()


class CellConfig(FrozenModel):
    """All options of `feddbp experiment cell`."""

    where: ExecutionConfig = ExecutionConfig()
    cell: Resources = Resources()
