"""Options that several commands share, and those of the demo."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Self

from pydantic import Field, field_validator, model_validator

from feddbp_client.config import DEVICE_HELP
from feddbp_common.config.catalog import CUSTOM_DATASET, DATASETS
from feddbp_common.config.data import DataConfig
from feddbp_common.config.dry_run import FORMAT_HELP, DryRunFormat
from feddbp_common.config.run import RunConfig
from feddbp_common.config.training import TrainingConfig
from feddbp_common.config.types import CommaSeparated, FrozenModel
from feddbp_common.cpu_cores import usable_cores
from feddbp_common.errors import ConfigurationError
from feddbp_common.rpc.credentials import DEFAULT_ADDRESS, ClientCredentials, check_address, check_exposure

TRACK_HELP: Final = "where to: tensorboard[:DIR], mlflow[:URI], wandb[:PROJECT]; several with commas"
_HIDDEN: Final[dict[str, Any]] = {"hidden": True}


class ConnectionConfig(FrozenModel):
    """Server: its address, and how to connect to it."""

    server: str = Field(
        DEFAULT_ADDRESS, description="address of the server, HOST:PORT", json_schema_extra={"metavar": "HOST:PORT"}
    )
    certs: Path | None = Field(
        None,
        description="directory made by `feddbp certs`, with the operator's certificate",
        json_schema_extra={"metavar": "DIR"},
    )
    insecure: bool = Field(False, description="connect to another machine without TLS")

    @model_validator(mode="after")
    def _encrypted_or_on_purpose(self) -> Self:
        self._check_server()
        return self

    def _check_server(self) -> None:
        check_address(self.server)
        check_exposure(self.server, certs=self.certs, insecure=self.insecure)


class OperatorConfig(ConnectionConfig):
    """Server: its address, and the operator's credentials."""

    token_file: Path | None = Field(None, description="file with the operator's token")

    @property
    def credentials(self) -> ClientCredentials:
        return ClientCredentials(certs=self.certs, token_file=self.token_file)


class StatusViewConfig(OperatorConfig):
    """Status: which server's, and how it is printed."""

    watch: bool = Field(False, description="update until the run has ended; exit code 5 if it failed or was stopped")
    json_output: bool = Field(
        False, description="as JSON; one line per change with --watch", json_schema_extra={"flag": "--json"}
    )


class StatusConfig(FrozenModel):
    """All options of `feddbp status`."""

    view: StatusViewConfig = StatusViewConfig()


class DemoData(DataConfig):
    """Data: which data set, and how it is split over clients."""

    dataset: str = Field("digits", description=", ".join(DATASETS))
    # these are for custom data sets, which the demo does not take
    classes: int | None = Field(None, json_schema_extra=_HIDDEN)
    class_names: CommaSeparated = Field((), json_schema_extra=_HIDDEN)
    image_size: int | None = Field(None, json_schema_extra=_HIDDEN)

    @field_validator("dataset")
    @classmethod
    def _public(cls, name: str) -> str:
        if name == CUSTOM_DATASET:
            raise ConfigurationError("the demo splits a public data set; feddbp-client --data takes your own")
        return name


class DemoTraining(TrainingConfig):
    """Local training: what each client does in a round."""

    local_epochs: int = Field(3, ge=1, description="passes over the local data per round")
    learning_rate: float = Field(0.05, gt=0, description="step size of SGD")


class DemoRun(RunConfig):
    """Run: the configuration all clients share, with defaults for a run of a minute on two cores."""

    clients: int = Field(8, ge=1, le=1000, description="clients, and shards of the data")
    rounds: int = Field(10, ge=1, description="rounds of training")
    data: DemoData = DemoData()
    training: DemoTraining = DemoTraining()

    def as_run(self) -> RunConfig:
        # the other parts as they are: which of their settings were given has a meaning
        parts = {"data": self.data.model_dump(), "training": self.training.model_dump()}
        return RunConfig.model_validate({**dict(self), **parts})


class LocalConfig(FrozenModel):
    """Demo: how it runs on this machine, and what it prints."""

    out: Path | None = Field(
        None,
        description="directory of the results; default runs/demo-METHOD-DATASET",
        json_schema_extra={"metavar": "DIR"},
    )
    processes: int | None = Field(None, ge=1, description="client processes; default one per core")
    data_dir: Path = Field(Path("data"), description="where public data sets are found or downloaded to")
    device: str = Field("auto", description=DEVICE_HELP)
    frozen_weights: Path | None = Field(
        None,
        description="safetensors file with the weights of the method frozen's network",
        json_schema_extra={"metavar": "FILE"},
    )
    dashboard: bool = Field(False, description="serve a page of the run, and open it in a browser")
    track: CommaSeparated = Field(
        (),
        description=f"experiment trackers to write the run to; {TRACK_HELP}",
        json_schema_extra={"metavar": "TRACKERS"},
    )
    json_output: bool = Field(
        False, description="print the summary as JSON and nothing else", json_schema_extra={"flag": "--json"}
    )
    dry_run: bool = Field(False, description="print the resolved configuration and exit")
    dry_run_format: DryRunFormat = Field("json", description=FORMAT_HELP, json_schema_extra={"flag": "--format"})


class DemoConfig(FrozenModel):
    """All options of `feddbp demo`."""

    here: LocalConfig = LocalConfig()
    run: DemoRun = DemoRun()

    @property
    def processes(self) -> int:
        return min(self.here.processes or usable_cores(), self.run.clients)
