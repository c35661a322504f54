"""The environment variables of all commands, so that a misspelt one is refused as a misspelt flag is.

Commands share variables, and one that another command reads is not an error. The models of other commands are loaded
only when this command does not know a variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Final

from pydantic import BaseModel

from feddbp_common.config.diagnostics import did_you_mean
from feddbp_common.config.sources import options_of
from feddbp_common.errors import ConfigurationError
from feddbp_common.fault_injection import VARIABLE as FAULT_VARIABLE

ENV_PREFIX: Final = "FEDDBP_"
CONFIG_VARIABLE: Final = f"{ENV_PREFIX}CONFIG"
COMMAND_MODELS: Final = (
    "feddbp_server.config:ServerConfig",
    "feddbp_client.config:ClientConfig",
    "feddbp_lab.commands.options:DemoConfig",
    "feddbp_lab.commands.options:StatusConfig",
    "feddbp_lab.commands.operate:PauseConfig",
    "feddbp_lab.commands.operate:StopConfig",
    "feddbp_lab.commands.client:ClientCommandConfig",
    "feddbp_lab.commands.health:HealthConfig",
    "feddbp_lab.commands.gpu_check:GpuCheckConfig",
    "feddbp_lab.commands.compose:ComposeConfig",
    "feddbp_lab.commands.data_check:DataCheckConfig",
    "feddbp_lab.commands.data_subset:DataSubsetConfig",
    "feddbp_lab.commands.predict:PredictConfig",
    "feddbp_lab.commands.export:ExportConfig",
    "feddbp_lab.commands.privacy:AuditConfig",
    "feddbp_lab.commands.track:TrackConfig",
    "feddbp_lab.commands.dashboard:DashboardConfig",
    "feddbp_lab.experiments.config:ExperimentConfig",
    "feddbp_lab.experiments.config:PlanConfig",
    "feddbp_lab.experiments.config:CellConfig",
)
"""The options of every command, by the place of their model: this package imports neither side."""
_SERVICE_LINK: Final = re.compile(
    r".+_(SERVICE_HOST=.*|SERVICE_PORT(_\w+)?=.*|PORT=\w+://.*|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?=.*)"
)
"""Kubernetes and Docker set such variables for services, also for one that is called feddbp-server."""


def check_variables(model: type[BaseModel], environ: Mapping[str, str]) -> None:
    """Raises ConfigurationError for a variable with our prefix that no command reads."""
    ours = {name for name, value in environ.items() if name.startswith(ENV_PREFIX) and not _is_link(name, value)}
    unknown = ours - {*_variables_of(model), CONFIG_VARIABLE, FAULT_VARIABLE}
    if not unknown:
        return
    known = {name for other in COMMAND_MODELS for name in _variables_of(load_model(other))}
    for name in sorted(unknown - known):
        hint = did_you_mean(name, known, prefix=ENV_PREFIX) or "; --help lists the variables of a command"
        raise ConfigurationError(f"{name}: no command has this option{hint}")


def _is_link(name: str, value: str) -> bool:
    return _SERVICE_LINK.fullmatch(f"{name}={value}") is not None


def _variables_of(model: type[BaseModel]) -> Iterator[str]:
    return (option.variable(ENV_PREFIX) for option in options_of(model))


def load_model(place: str) -> type[BaseModel]:
    module, _, name = place.partition(":")
    model: type[BaseModel] = getattr(import_module(module), name)
    return model
