"""`feddbp compose`: prints a Docker Compose file for a federation; deploy/docker-compose.yml is its output."""

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
from feddbp_common.config.data import DataConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.config.types import FrozenModel
from feddbp_common.errors import ConfigurationError, ExitCode
from feddbp_common.rpc.credentials import client_subject
from feddbp_lab.commands.options import DemoRun
from feddbp_lab.processes.flags import arguments_for
from feddbp_server.config import ListenConfig, RoundsConfig, ServerConfig

PROG: Final = "feddbp compose"
_BUNDLED_DATASET: Final = "digits"
"""The data set the client's image contains, as part of scikit-learn."""
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
    """Compose: options of the file besides the run."""

    source: Path = Field(
        Path(".."),
        description="path of the checkout, relative to the directory of the Compose file",
        json_schema_extra={"metavar": "DIR"},
    )
    data_dir: Path | None = Field(
        None, description="directory with public data sets, relative to the Compose file; mounted read-only"
    )
    gpus: int | None = Field(
        None, ge=1, description="print the overlay for a machine with this many GPUs, assigned to clients round-robin"
    )


class ComposeConfig(FrozenModel):
    """All options of `feddbp compose`."""

    file: FileConfig = FileConfig()
    run: DemoRun = DemoRun()

    @model_validator(mode="after")
    def _data_is_available(self) -> Self:
        dataset = self.run.data.dataset
        if dataset != _BUNDLED_DATASET and self.file.data_dir is None:
            raise ConfigurationError(
                f"the clients' network is internal, so they cannot download {DATASETS[dataset].title}; give --data-dir"
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
    mount = Template(_DATA_MOUNT).substitute(directory=_quoted(data)) if data else ""
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
    return shlex.join((*PROG.split(), *_without_implied(arguments_for(config), config.run)))


def _server_arguments(run: RunConfig) -> list[str]:
    """The flags of the run; the address and the certificates are set by the image."""
    # all clients take part, and the server lingers so that a slow client, or one started again, learns of the end
    config = ServerConfig(
        listen=ListenConfig(linger=timedelta(minutes=10)), rounds=RoundsConfig(min_clients=run.clients), run=run
    )
    return _without_implied(arguments_for(config), run)


def _without_implied(arguments: Iterable[str], run: RunConfig) -> list[str]:
    """Drops flags with the values that the method and the data set have by default."""
    plain = RunConfig(method=run.method, data=DataConfig(dataset=run.data.dataset))
    implied = {
        argument for argument in arguments_for(plain) if argument.startswith(("--set=", "--classes=", "--image-size="))
    }
    return [argument for argument in arguments if argument not in implied]


def _scalar(value: object) -> str:
    """A value as a YAML scalar, quoted unless it consists of characters without a meaning in YAML and Compose."""
    return str(value) if re.fullmatch(r"[\w./=+-]+", str(value), re.ASCII) else _quoted(value)


def _quoted(value: object) -> str:
    """A quoted string, also for what looks like a number: a directory may be called 2024. Compose reads $$ as $."""
    return json.dumps(str(value).replace("$", "$$"))


def _lines(parts: Iterable[str]) -> str:
    return "\n".join(parts).rstrip()
