"""The client's options: identity, server, device, data and model. Hyper-parameters come from the server."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

from pydantic import ByteSize, Field, field_validator, model_validator

from feddbp_client.privacy.ledger import EPSILON_BUDGET
from feddbp_common.artifacts import DATA_CACHE_NAME
from feddbp_common.config.dry_run import FORMAT_HELP, DryRunFormat
from feddbp_common.config.types import CommaSeparated, Duration, FrozenModel, is_module_name, parse_ids, parse_numbers
from feddbp_common.errors import ConfigurationError
from feddbp_common.rpc.credentials import DEFAULT_ADDRESS, ClientCredentials, check_address, check_exposure
from feddbp_common.secure_sums import MAX_CLIENTS, MIN_CLIENTS

Gpus: TypeAlias = tuple[int, ...] | Literal["auto"] | None
"""CUDA devices by number, all of them, or none in particular."""
Threads: TypeAlias = int | Literal["auto"]

DEVICE_HELP: Final = "cpu, cuda:N or mps; auto selects the first CUDA GPU, else Apple's, else the CPU"
_LONGEST_NAME: Final = 64


class Mode(Enum):
    """How torch computes: as it does by itself, the same bits every time, or as fast as the hardware allows."""

    DEFAULT = auto()
    DETERMINISTIC = auto()
    FAST = auto()


class IdentityConfig(FrozenModel):
    """Client: its id, the server and the credentials for it."""

    id: int | None = Field(None, ge=0, description="this client's id")
    ids: str | None = Field(None, description="several clients in one process, e.g. 0-19 or 0,3,5-7")
    name: str = Field(
        "",
        max_length=_LONGEST_NAME,
        description="a name for this client, such as north-clinic, shown wherever its id is",
    )
    all_or_none: bool = Field(False, description="with --ids: when one client fails, stop the others too")
    server: str = Field(
        DEFAULT_ADDRESS, description="address of the server, HOST:PORT", json_schema_extra={"metavar": "HOST:PORT"}
    )
    certs: Path | None = Field(
        None,
        description="directory written by `feddbp certs`, with this client's certificate",
        json_schema_extra={"metavar": "DIR"},
    )
    token_file: Path | None = Field(None, description="file with this client's token")
    insecure: bool = Field(False, description="connect to another machine without TLS")
    state_dir: Path = Field(Path("feddbp-state/clients"), description="checkpoints, by run and client")
    require_secure_sums: int | None = Field(
        None,
        ge=MIN_CLIENTS,
        le=MAX_CLIENTS,
        description="take part only in runs with secure sums, and only in sums of at least this many clients",
        json_schema_extra={"metavar": "CLIENTS"},
    )
    server_moved: bool = Field(
        False, description="continue a run whose server has another address, or another authority, than before"
    )
    patience: Duration = Field(
        timedelta(minutes=5), ge=timedelta(0), description="how long to retry while the server is unreachable"
    )
    next_run: bool = Field(
        False, description="retry also when this client's last run with the server has ended: another one will begin"
    )
    dry_run: bool = Field(False, description="print the resolved configuration and exit")
    dry_run_format: DryRunFormat = Field("json", description=FORMAT_HELP, json_schema_extra={"flag": "--format"})
    json_output: bool = Field(False, description="logs as JSON lines", json_schema_extra={"flag": "--json"})
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="lowest level that is logged")

    @model_validator(mode="after")
    def _check_identity(self) -> Self:
        if self.id is not None and self.ids is not None:
            raise ConfigurationError("give only one of --id and --ids")
        if self.id is None and self.ids is None:
            raise ConfigurationError("a client needs an id: give either --id N or --ids 0-19")
        if self.name and self.id is None:
            raise ConfigurationError("--name is that of one client: give it with --id")
        check_address(self.server)
        check_exposure(self.server, certs=self.certs, insecure=self.insecure)
        return self

    @field_validator("name")
    @classmethod
    def _fits_on_a_line(cls, name: str) -> str:
        if not name.isprintable() or name != name.strip():
            raise ConfigurationError(f"--name: {name!r} has characters that cannot be printed, or spaces at an end")
        return name

    @property
    def credentials(self) -> ClientCredentials:
        return ClientCredentials(certs=self.certs, token_file=self.token_file)

    @property
    def client_ids(self) -> tuple[int, ...]:
        return (self.id,) if self.id is not None else parse_ids(self.ids or "")


class ComputeConfig(FrozenModel):
    """Computing: devices, threads, precision and memory."""

    gpu: Gpus = Field(
        None, description="train on this CUDA device, or spread the clients over several, e.g. 0,1,2,3, or auto for all"
    )
    device: str = Field("auto", description=DEVICE_HELP)
    jobs_per_gpu: int = Field(
        1, ge=1, description="clients that train at the same time on a CUDA device; on a CPU it is always one"
    )
    threads: Threads = Field(
        "auto", description="CPU threads; auto shares the cores among the clients that train at the same time"
    )
    amp: bool = Field(False, description="train in mixed precision: bfloat16, or float16 on cards before Ampere")
    image_memory: ByteSize | None = Field(
        None,
        description="memory for images on each GPU, e.g. 4GiB; others are copied batch by batch "
        "(default: a quarter of what is free)",
    )
    gpu_memory_share: float = Field(
        1.0, gt=0, le=1, description="part of each GPU's memory that this process may take, e.g. 0.5 if two share it"
    )
    deterministic: bool = Field(
        False, description="the same bits every time, also on a GPU; slower, and one client at a time"
    )
    reproducible: bool = Field(
        False, description="train on the CPU with AVX2 alone, for the same bits on other kinds of x86-64 CPU"
    )
    fast: bool = Field(False, description="fastest kernels on a GPU, compiled networks; results differ slightly")

    @field_validator("gpu", mode="before")
    @classmethod
    def _list_of_devices(cls, value: Any) -> Any:
        if isinstance(value, int):
            value = str(value)
        numbers = value if value == "auto" else parse_numbers(value, "--gpu")
        if isinstance(numbers, tuple) and len(set(numbers)) < len(numbers):
            raise ConfigurationError(f"--gpu: a device is given twice in {value!r}")
        return numbers

    @field_validator("threads", mode="before")
    @classmethod
    def _number_of_threads(cls, value: Any) -> Any:
        if value != "auto" and not (str(value).isdecimal() and int(value)):
            raise ConfigurationError(f"--threads: {value!r} is neither a number of threads nor auto")
        return value if value == "auto" else int(value)

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        if self.deterministic and self.fast:
            raise ConfigurationError("give --deterministic or --fast, not both")
        if self.reproducible and (self.fast or self.gpu is not None or self.device not in ("auto", "cpu")):
            raise ConfigurationError("--reproducible is for the CPU; leave out --gpu, --device and --fast")
        if self.deterministic and self.jobs_per_gpu > 1:
            raise ConfigurationError("--deterministic trains one client at a time; leave out --jobs-per-gpu")
        return self

    @property
    def chosen_device(self) -> str:
        return "cpu" if self.reproducible else self.device

    @property
    def mode(self) -> Mode:
        return Mode.DETERMINISTIC if self.deterministic else Mode.FAST if self.fast else Mode.DEFAULT


class SourceConfig(FrozenModel):
    """Data and model: what this client trains on, and its architecture."""

    data: Path | None = Field(None, description="private data, not split: an image folder or an npz file")
    skip_unreadable: bool = Field(
        False, description="leave out files in a --data folder that are not readable images; the log names them"
    )
    data_dir: Path = Field(Path("data"), description="where public data sets are read from or downloaded to")
    data_cache: Path | None = Field(
        None,
        description="where decoded images of a large --data folder are kept "
        f"(default: {DATA_CACHE_NAME} in --state-dir)",
        json_schema_extra={"metavar": "DIR"},
    )
    data_cache_size: ByteSize = Field(
        ByteSize(20_000_000_000), ge=0, description="most bytes that decoded images may take on disk; 0 keeps none"
    )
    frozen_weights: Path | None = Field(
        None,
        description="safetensors file with the weights of the run's fixed network (method frozen)",
        json_schema_extra={"metavar": "FILE"},
    )
    epsilon_budget: float = Field(
        EPSILON_BUDGET,
        gt=0,
        description="most epsilon that releases under differential privacy may spend together, over all runs of this "
        "client in --state-dir; it stays out of a run that would need more",
    )
    model: str | None = Field(None, description="architecture by name, or package.module:function for your own")
    init_from: Path | None = Field(
        None,
        description="begin with the weights of this checkpoint of another run, of the same architecture",
        json_schema_extra={"metavar": "CHECKPOINT"},
    )
    allow_import: CommaSeparated = Field(
        (),
        description="packages from which a run may name functions for this client to import, comma-separated",
        json_schema_extra={"metavar": "PACKAGES"},
    )

    @field_validator("allow_import")
    @classmethod
    def _names_of_packages(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not is_module_name(name):
                raise ConfigurationError(f"--allow-import: {name!r} is not the name of a package or module")
        return names


class ClientConfig(FrozenModel):
    """All options of `feddbp-client`."""

    identity: IdentityConfig = Field(default_factory=lambda: IdentityConfig())
    compute: ComputeConfig = ComputeConfig()
    source: SourceConfig = SourceConfig()

    @model_validator(mode="after")
    def _check_device_options(self) -> Self:
        if self.compute.gpu is not None and self.compute.device != "auto":
            raise ConfigurationError("give --gpu or --device, not both")
        if self.source.init_from is not None and self.identity.id is None:
            raise ConfigurationError("--init-from is for one client: give it with --id")
        parse_ids(self.identity.ids or "0")
        return self
