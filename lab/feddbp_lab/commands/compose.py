"""`feddbp compose`: a Docker Compose file for a federation of any size; deploy/docker-compose.yml is its output."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Final, Self

from pydantic import Field, model_validator

from feddbp_common.config.catalog import DATASETS, MODEL_GROUPS
from feddbp_common.config.command_line import settings_from, settings_parser
from feddbp_common.config.run import DataConfig, RunConfig
from feddbp_common.config.types import FrozenModel
from feddbp_common.errors import ConfigurationError, ExitCode
from feddbp_common.rpc.credentials import client_subject
from feddbp_lab.commands.options import DemoRun
from feddbp_lab.processes.flags import arguments_for
from feddbp_server.config import ListenConfig, RoundsConfig, ServerConfig

PROG: Final = "feddbp compose"
_COMES_ALONG: Final = "digits"
"""The data set that is in the client's image, because a library brings it."""
_CLIENT_BUILD: Final = """
    build:
      context: $source
      dockerfile: deploy/client.Dockerfile
      args:
        TORCH_INDEX_URL: $${TORCH_INDEX_URL:-}"""
_GPU_BUILD: Final = """
    build:
      args:
        TORCH_INDEX_URL: ${TORCH_CUDA_INDEX_URL:-}"""
# The long form: `data:/data` would be a volume named data. A missing directory is an error, not an empty mount.
_DATA_MOUNT: Final = """
      - {type: bind, source: $directory, target: /data, read_only: true, bind: {create_host_path: false}}"""


class FileConfig(FrozenModel):
    """Compose: what the file says besides the run."""

    source: Path = Field(Path(".."), description="the checkout, seen from the directory the file will lie in")
    data_dir: Path | None = Field(
        None, description="this machine's directory of public data sets, seen from there too; clients only read it"
    )
    gpus: int | None = Field(
        None, ge=1, description="print the overlay for machines with so many GPUs, which go round among the clients"
    )


class ComposeConfig(FrozenModel):
    """All options of `feddbp compose`."""

    file: FileConfig = FileConfig()
    run: DemoRun = DemoRun()

    @model_validator(mode="after")
    def _data_is_at_hand(self) -> Self:
        dataset = self.run.data.dataset
        if dataset != _COMES_ALONG and self.file.data_dir is None:
            raise ConfigurationError(
                f"clients on a network without a way out cannot download {DATASETS[dataset].title}; give --data-dir"
            )
        return self


def command(argv: Sequence[str]) -> int:
    parser = settings_parser(
        PROG, "Prints a Docker Compose file: a server, its clients and their certificates.", ComposeConfig
    )
    print(compose_file(settings_from(ComposeConfig, parser.parse_args(argv))), end="")
    return ExitCode.OK


def compose_file(config: ComposeConfig) -> str:
    return _federation(config) if config.file.gpus is None else _gpu_overlay(config, config.file.gpus)


def _federation(config: ComposeConfig) -> str:
    run, source, data = config.run.as_run(), _scalar(config.file.source), config.file.data_dir
    group = MODEL_GROUPS[run.training.model_group]
    names = [client_subject(client_id) for client_id in range(run.clients)]
    service = _template("client-service.yml")
    build = Template(_CLIENT_BUILD).substitute(source=source)
    mount = Template(_DATA_MOUNT).substitute(directory=_text(data)) if data else ""
    services = [
        service.substitute(
            name=name,
            client_id=client_id,
            architecture=group.body_of(client_id),
            build="" if client_id else build,
            data=mount,
        )
        for client_id, name in enumerate(names)
    ]
    return _template("docker-compose.yml").substitute(
        made_by=_made_by(config),
        clients=run.clients,
        last_id=run.clients - 1,
        source=source,
        server_arguments=_lines(f"      - {_scalar(argument)}" for argument in _server_arguments(run)),
        certificate_mounts=_lines(f"      - certs-{name}:/parties/{name}" for name in names),
        client_services=_lines(services),
        client_volumes=_lines(f"  certs-{name}:\n  state-{name}:" for name in names),
    )


def _gpu_overlay(config: ComposeConfig, gpus: int) -> str:
    service = _template("client-service.gpu.yml")
    services = [
        service.substitute(name=client_subject(client_id), gpu=client_id % gpus, build="" if client_id else _GPU_BUILD)
        for client_id in range(config.run.clients)
    ]
    return _template("docker-compose.gpu.yml").substitute(made_by=_made_by(config), client_services=_lines(services))


def _template(name: str) -> Template:
    # string.Template, not Jinja2: this command belongs to the base installation, which has no Jinja2
    return Template((files(__package__) / "templates" / f"{name}.template").read_text(encoding="utf-8"))


def _made_by(config: ComposeConfig) -> str:
    return shlex.join((*PROG.split(), *_without_the_obvious(arguments_for(config), config.run)))


def _server_arguments(run: RunConfig) -> list[str]:
    """Everything about the run; where the server listens and whom it trusts is the image's business."""
    # everyone takes part, and a client that starts slowly still hears of the end, also when all is started once more
    config = ServerConfig(
        listen=ListenConfig(linger=timedelta(minutes=10)), rounds=RoundsConfig(min_clients=run.clients), run=run
    )
    return _without_the_obvious(arguments_for(config), run)


def _without_the_obvious(arguments: Iterable[str], run: RunConfig) -> list[str]:
    """A run holds in full what its method and its data set imply; nobody needs to be told."""
    plain = RunConfig(method=run.method, data=DataConfig(dataset=run.data.dataset))
    implied = {
        argument for argument in arguments_for(plain) if argument.startswith(("--set=", "--classes=", "--image-size="))
    }
    return [argument for argument in arguments if argument not in implied]


def _scalar(value: object) -> str:
    """A word as it may stand anywhere in a Compose file, where $ and much punctuation mean something."""
    return str(value) if re.fullmatch(r"[\w./=+-]+", str(value), re.ASCII) else _text(value)


def _text(value: object) -> str:
    """A word that stays one even if it looks like a number: a directory may be called 2024."""
    return json.dumps(str(value).replace("$", "$$"))


def _lines(parts: Iterable[str]) -> str:
    return "\n".join(parts).rstrip()
