"""Where tracked runs go: TensorBoard, MLflow, Weights & Biases. Each imports its library when it is opened."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from feddbp_common.errors import ConfigurationError
from feddbp_common.optional_deps import require

_LONGEST_PARAMETER: Final = 500
"""Characters that MLflow stores of a parameter."""


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """What a tracker is told of a run when it begins."""

    run_id: str
    name: str
    """Such as `feddbp-cifar10-seed-0`, for people."""
    settings: Mapping[str, Any]
    """The configuration by dotted name."""


class Sink(ABC):
    """One tracker. Its methods block, and run in a thread of their own; an error ends the sink, not the run."""

    modules: ClassVar[tuple[str, ...]]
    extra: ClassVar[str]

    @abstractmethod
    def begin(self, run: TrackedRun) -> None:
        """Called first."""

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Values after `step` completed rounds; steps never decrease."""

    @abstractmethod
    def end(self, *, finished: bool, reason: str) -> None:
        """Called last; a run that was stopped or failed is not finished."""


@dataclass
class TensorBoardSink(Sink):
    """Event files that `tensorboard --logdir DIR` reads, one directory a run."""

    modules: ClassVar = ("tensorboard",)
    extra: ClassVar = "tensorboard"
    directory: Path
    _writer: Any = field(default=None, init=False)

    def begin(self, run: TrackedRun) -> None:
        from tensorboard.summary import Writer

        self._writer = Writer(str(self.directory / f"{run.name}-{run.run_id}"))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def end(self, *, finished: bool, reason: str) -> None:
        self._writer.close()


@dataclass
class MlflowSink(Sink):
    """A run in the experiment `feddbp` of an MLflow server, or of a local SQLite file."""

    modules: ClassVar = ("mlflow",)
    extra: ClassVar = "mlflow"
    uri: str
    _client: Any = field(default=None, init=False)
    _run_id: str = field(default="", init=False)

    def begin(self, run: TrackedRun) -> None:
        from mlflow.entities import Param, RunTag
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=self.uri)
        experiment = self._client.get_experiment_by_name("feddbp")
        experiment_id = self._client.create_experiment("feddbp") if experiment is None else experiment.experiment_id
        self._run_id = self._client.create_run(experiment_id, run_name=run.name).info.run_id
        settings = [Param(name, str(value)[:_LONGEST_PARAMETER]) for name, value in run.settings.items()]
        self._client.log_batch(self._run_id, params=settings, tags=[RunTag("feddbp.run_id", run.run_id)])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self._run_id, metrics=[Metric(name, value, now, step) for name, value in values.items()])

    def end(self, *, finished: bool, reason: str) -> None:
        self._client.set_tag(self._run_id, "feddbp.reason", reason)
        self._client.set_terminated(self._run_id, "FINISHED" if finished else "FAILED")


@dataclass
class WandbSink(Sink):
    """A run in a project of Weights & Biases; `WANDB_MODE=offline` keeps it on this machine."""

    modules: ClassVar = ("wandb",)
    extra: ClassVar = "wandb"
    project: str
    _run: Any = field(default=None, init=False)

    def begin(self, run: TrackedRun) -> None:
        import wandb

        self._run = wandb.init(
            project=self.project,
            name=run.name,
            config=dict(run.settings),
            tags=[run.run_id],
            # one process tracks the runs of many cells, one after the other or side by side
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def end(self, *, finished: bool, reason: str) -> None:
        self._run.summary["reason"] = reason
        self._run.finish(exit_code=0 if finished else 1)


def sink_for(text: str) -> Sink:
    """The sink of `tensorboard[:DIR]`, `mlflow[:URI]` or `wandb[:PROJECT]`; refuses one that is not installed."""
    kind, _, place = text.partition(":")
    match kind:
        case "tensorboard":
            sink: Sink = TensorBoardSink(Path(place or "runs/tensorboard"))
        case "mlflow":
            sink = MlflowSink(place or os.environ.get("MLFLOW_TRACKING_URI", "") or "sqlite:///mlflow.db")
        case "wandb":
            sink = WandbSink(place or "feddbp")
        case _:
            raise ConfigurationError(
                f"--track: no tracker is called {kind!r}; there are: tensorboard[:DIR], mlflow[:URI], wandb[:PROJECT]"
            )
    require(f"--track {kind}", sink.modules, extra=sink.extra)
    return sink
