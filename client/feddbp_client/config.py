"""The client's options: identity, server, device, data and model. Hyper-parameters come from the server."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from feddbp_common.config.references import is_module_name
from feddbp_common.config.types import CommaSeparated, Duration, FrozenModel, parse_ids
from feddbp_common.errors import ConfigurationError
from feddbp_common.rpc.credentials import ClientCredentials, check_address, check_exposure


class IdentityConfig(FrozenModel):
    """Client: its id, the server and the credentials for it."""

    id: int | None = Field(None, ge=0, description="this client's id")
    ids: str | None = Field(None, description="several clients in one process, e.g. 0-19 or 0,3,5-7")
    all_or_none: bool = Field(False, description="with --ids: when one client fails, stop the others too")
    server: str = Field("127.0.0.1:50051", description="address of the server, HOST:PORT")
    certs: Path | None = Field(None, description="directory written by `feddbp certs`, with this client's certificate")
    token_file: Path | None = Field(None, description="file with this client's token")
    insecure: bool = Field(False, description="connect to another machine without TLS")
    state_dir: Path = Field(Path("feddbp-state/clients"), description="checkpoints, by run and client")
    patience: Duration = Field(
        timedelta(minutes=5), ge=timedelta(0), description="how long to retry while the server is unreachable"
    )
    dry_run: bool = Field(False, description="print the resolved configuration and exit")
    json_output: bool = Field(False, description="logs as JSON lines", json_schema_extra={"flag": "--json"})
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="lowest level that is logged")

    @model_validator(mode="after")
    def _check_identity(self) -> Self:
        if (self.id is None) == (self.ids is None):
            raise ConfigurationError("a client needs an id: give either --id N or --ids 0-19")
        check_address(self.server)
        check_exposure(self.server, certs=self.certs, insecure=self.insecure)
        return self

    @property
    def credentials(self) -> ClientCredentials:
        return ClientCredentials(certs=self.certs, token_file=self.token_file)

    @property
    def client_ids(self) -> tuple[int, ...]:
        return (self.id,) if self.id is not None else parse_ids(self.ids or "")


class ComputeConfig(FrozenModel):
    """Computing: device, threads and precision."""

    gpu: int | None = Field(None, ge=0, description="train on this CUDA device")
    device: str = Field(
        "auto", description="cpu, cuda:N or mps; auto selects the first CUDA GPU, else Apple's, else the CPU"
    )
    threads: int = Field(1, ge=1, description="CPU threads; with one, the same run gives the same bits")
    amp: bool = Field(False, description="train in mixed precision")


class SourceConfig(FrozenModel):
    """Data and model: what this client trains on, and its architecture."""

    data: Path | None = Field(None, description="private data, not split: an image folder or an npz file")
    data_dir: Path = Field(Path("data"), description="where public data sets are read from or downloaded to")
    model: str | None = Field(None, description="architecture by name, or package.module:function for your own")
    allow_import: CommaSeparated = Field(
        (), description="packages from which a run may name functions for this client to import, comma-separated"
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
        parse_ids(self.identity.ids or "0")
        return self
