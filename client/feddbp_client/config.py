"""The client's options: who it is, where the server is, what it trains on. Hyper-parameters come from the server."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from feddbp_common.config.types import Duration, FrozenModel, parse_ids
from feddbp_common.errors import ConfigurationError
from feddbp_common.rpc.credentials import ClientCredentials, check_address, check_exposure


class IdentityConfig(FrozenModel):
    """Client: who it is and where the server is."""

    id: int | None = Field(None, ge=0, description="this client's id")
    ids: str | None = Field(None, description="several clients in one process, e.g. 0-19 or 0,3,5-7")
    all_or_none: bool = Field(False, description="with --ids: when one of the clients fails, end the others too")
    server: str = Field("127.0.0.1:50051", description="address of the server, HOST:PORT")
    certs: Path | None = Field(None, description="directory made by `feddbp certs`, with this client's certificate")
    token_file: Path | None = Field(None, description="file with this client's token")
    insecure: bool = Field(False, description="talk to another machine without TLS")
    state_dir: Path = Field(Path("feddbp-state/clients"), description="checkpoints, by run and client")
    patience: Duration = Field(
        timedelta(minutes=5), ge=timedelta(0), description="how long to keep trying when the server is away"
    )
    dry_run: bool = Field(False, description="print the resolved configuration and exit")
    json_output: bool = Field(False, description="logs as JSON lines", json_schema_extra={"flag": "--json"})
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level that is logged")

    @model_validator(mode="after")
    def _check_identity(self) -> Self:
        if (self.id is None) == (self.ids is None):
            raise ConfigurationError("say who this client is: either --id N or --ids 0-19")
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
        "auto", description="cpu, cuda:N or mps; auto takes CUDA's first GPU, else Apple's, else the CPU"
    )
    threads: int = Field(1, ge=1, description="CPU threads; with one, the same run gives the same bits")
    amp: bool = Field(False, description="mixed precision")


class SourceConfig(FrozenModel):
    """Data and model: what this client learns from and with."""

    data: Path | None = Field(None, description="private data, not split: an image folder or an npz file")
    data_dir: Path = Field(Path("data"), description="where public data sets are found or downloaded to")
    model: str | None = Field(None, description="architecture by name, or package.module:function for your own")


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
