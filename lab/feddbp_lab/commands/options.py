"""The options of the commands. A demo's run is a run like any other, with defaults that fit a minute on two cores."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from pydantic import Field, field_validator, model_validator

from feddbp_common.config.catalog import CUSTOM_DATASET, DATASETS
from feddbp_common.config.command_line import Parser, import_from_working_directory, settings_parser
from feddbp_common.config.run import DataConfig, RunConfig, TrainingConfig
from feddbp_common.config.types import FrozenModel
from feddbp_common.errors import ConfigurationError
from feddbp_common.optional_deps import require
from feddbp_common.rpc.credentials import ClientCredentials, check_address, check_exposure

if TYPE_CHECKING:
    from feddbp_client.inference.trained_client import TrainedClient


_HIDDEN: dict[str, Any] = {"hidden": True}


class DemoData(DataConfig):
    """Data: which, and how it is split over clients."""

    dataset: str = Field("digits", description=", ".join(DATASETS))
    # only a custom data set has use for these, and a demo has no data but public ones
    classes: int | None = Field(None, json_schema_extra=_HIDDEN)
    class_names: tuple[str, ...] = Field((), json_schema_extra=_HIDDEN)
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
    """Run: everything that has to be the same for all clients."""

    clients: int = Field(8, ge=1, le=1000, description="clients, and shards of the data")
    rounds: int = Field(10, ge=1, description="rounds of training")
    data: DemoData = DemoData()
    training: DemoTraining = DemoTraining()

    def as_run(self) -> RunConfig:
        return RunConfig.model_validate(self.model_dump())


class LocalConfig(FrozenModel):
    """Demo: how it runs on this machine and what it shows."""

    out: Path | None = Field(None, description="where results go; default runs/demo-METHOD-DATASET")
    processes: int | None = Field(None, ge=1, description="client processes; default one per core")
    data_dir: Path = Field(Path("data"), description="where public data sets are found or downloaded to")
    device: str = Field(
        "auto", description="cpu, cuda:N or mps; auto takes CUDA's first GPU, else Apple's, else the CPU"
    )
    json_output: bool = Field(
        False, description="print the summary as JSON and nothing else", json_schema_extra={"flag": "--json"}
    )
    dry_run: bool = Field(False, description="print the resolved configuration and exit")


class DemoConfig(FrozenModel):
    """All options of `feddbp demo`."""

    here: LocalConfig = LocalConfig()
    run: DemoRun = DemoRun()

    @property
    def processes(self) -> int:
        return min(self.here.processes or usable_cores(), self.run.clients)


class ConnectionConfig(FrozenModel):
    """Server: where it is and how it is reached."""

    server: str = Field("127.0.0.1:50051", description="address of the server, HOST:PORT")
    certs: Path | None = Field(None, description="directory made by `feddbp certs`, with the operator's certificate")
    insecure: bool = Field(False, description="talk to another machine without TLS")

    @model_validator(mode="after")
    def _encrypted_or_on_purpose(self) -> Self:
        check_address(self.server)
        check_exposure(self.server, certs=self.certs, insecure=self.insecure)
        return self


class OperatorConfig(ConnectionConfig):
    """Server: where it is, and what shows that it is the operator who asks."""

    token_file: Path | None = Field(None, description="file with the operator's token")

    @property
    def access(self) -> ClientCredentials:
        return ClientCredentials(certs=self.certs, token_file=self.token_file)


class StatusViewConfig(OperatorConfig):
    """Status: whose, and how it is shown."""

    watch: bool = Field(False, description="go on showing it until the run is over; exit code 5 if that ends badly")
    json_output: bool = Field(
        False, description="as JSON; one line per change with --watch", json_schema_extra={"flag": "--json"}
    )


class StatusConfig(FrozenModel):
    """All options of `feddbp status`."""

    view: StatusViewConfig = StatusViewConfig()


def usable_cores() -> int:
    """Cores this process may use, which in a container are fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_NEEDED: Final = ("torch", "safetensors", "PIL")


class Options(FrozenModel):
    """Options of a command that uses a trained client."""


def checkpoint_parser(prog: str, others: str, description: str, model: type[Options]) -> Parser:
    """The parser of a command whose first argument is a checkpoint; `others` names those that follow it."""
    parser = settings_parser(prog, description, model)
    parser.usage = f"{prog} CHECKPOINT {others} [options]"
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="a client's directory in its --state-dir, STATE_DIR/RUN/client-ID, or the file in it",
    )
    return parser


def load_client(path: Path, *, who: str, device: str) -> TrainedClient:
    require(who, _NEEDED, extra="client")
    # torch takes a second to import: mistakes in the flags are told before that
    from feddbp_client.inference.restore import read_checkpoint
    from feddbp_client.inference.trained_client import TrainedClient

    checkpoint = read_checkpoint(path)
    if ":" in checkpoint.architecture:
        import_from_working_directory()
    return TrainedClient(checkpoint, device=device)
