"""A configuration passed to a child process on its command line resolves to the same configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from feddbp_client.config import ClientConfig, ComputeConfig, IdentityConfig
from feddbp_common.config.command_line import settings_from, settings_parser
from feddbp_common.config.data import DataConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.config.training import TrainingConfig
from feddbp_common.methods import METHODS
from feddbp_lab.processes.federation_options import FederationOptions
from feddbp_lab.processes.flags import arguments_for
from feddbp_server.config import ServerConfig


@pytest.mark.parametrize("method", METHODS)
def test_the_defaults_of_every_method_survive(method: str) -> None:
    config = ServerConfig(run=RunConfig(method=method, clients=3, training=TrainingConfig(local_epochs=2)))
    flags = settings_parser("server", "", ServerConfig).parse_args(arguments_for(config))
    assert settings_from(ServerConfig, flags) == config


def test_class_names_and_changed_settings_survive() -> None:
    run = RunConfig(
        method_settings={"tau": 0.5, "hard_negatives": "none", "without_share": True},
        data=DataConfig(dataset="custom", class_names=("cat", "dog")),
    )
    flags = settings_parser("server", "", ServerConfig).parse_args(arguments_for(ServerConfig(run=run)))
    assert settings_from(ServerConfig, flags).run == run


@pytest.mark.parametrize(("transform", "allowed"), [("", ()), ("own.images:cutout", ("own.images",))])
def test_clients_of_a_federation_on_this_machine_may_import_what_its_run_names(
    tmp_path: Path, transform: str, allowed: tuple[str, ...]
) -> None:
    run = RunConfig(training=TrainingConfig(transform=transform))
    options = FederationOptions(run=run, directory=tmp_path, processes=1, data_dir=tmp_path)
    arguments = arguments_for(options.client_config([0, 1], "127.0.0.1:50051"))
    config = settings_from(ClientConfig, settings_parser("client", "", ClientConfig).parse_args(arguments))
    assert config.source.allow_import == allowed


def test_client_processes_on_one_machine_have_one_thread_each(tmp_path: Path) -> None:
    options = FederationOptions(run=RunConfig(), directory=tmp_path, processes=2, data_dir=tmp_path)
    assert "--threads=1" in arguments_for(options.client_config([0], "127.0.0.1:50051"))


@pytest.mark.parametrize("is_secure", [False, True])
def test_parties_on_one_machine_have_certificates_if_they_sign(tmp_path: Path, is_secure: bool) -> None:
    run = RunConfig.model_validate({"clients": 5, "privacy": {"secure_sums": is_secure}})
    options = FederationOptions(run=run, directory=tmp_path, processes=1, data_dir=tmp_path)
    found = (
        options.server_config().listen.certs,
        options.client_config([0], "127.0.0.1:50051").identity.certs,
        options.credentials.certs,
    )
    certs = tmp_path / "certs"
    assert found == ((certs / "server", certs / "clients", certs / "operator") if is_secure else (None, None, None))
    assert options.certified_parties()["clients"][-1] == "client-4"


@pytest.mark.parametrize(
    "compute",
    [
        ComputeConfig(gpu=(0, 3), jobs_per_gpu=2, threads=4, image_memory="4GiB"),
        ComputeConfig(gpu="auto", amp=True, fast=True, image_memory=0),
        ComputeConfig(device="cpu", deterministic=True),
    ],
)
def test_options_of_devices_survive(compute: ComputeConfig) -> None:
    config = ClientConfig(identity=IdentityConfig(id=3), compute=compute)
    flags = settings_parser("client", "", ClientConfig).parse_args(arguments_for(config))
    assert settings_from(ClientConfig, flags) == config
