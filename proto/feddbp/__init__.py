"""Federated prototype learning over gRPC.

    import feddbp

    run = feddbp.RunConfig(method="feddbp", clients=4, rounds=3)
    result = feddbp.Federation(run, directory="runs/first").run()
    print(result.accuracy, result.client(0).predict(["digit.png"]))

Names are loaded when they are first used: importing this module loads neither torch nor gRPC. `feddbp.v1` has the
generated messages and stubs of the protocol.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feddbp_client.inference.trained_client import Prediction, TrainedClient
    from feddbp_common.config.data import DataConfig
    from feddbp_common.config.run import RunConfig
    from feddbp_common.config.training import TrainingConfig
    from feddbp_common.errors import ConfigurationError, FedDBPError
    from feddbp_lab.api.federation_run import Federation, FederationResult
    from feddbp_lab.api.run_control import RunControl, connect
    from feddbp_lab.api.run_status import ClientStatus, Incident, RunStatus

    __version__: str

_SOURCES = {
    "ClientStatus": "feddbp_lab.api.run_status",
    "ConfigurationError": "feddbp_common.errors",
    "DataConfig": "feddbp_common.config.data",
    "FedDBPError": "feddbp_common.errors",
    "Federation": "feddbp_lab.api.federation_run",
    "FederationResult": "feddbp_lab.api.federation_run",
    "Incident": "feddbp_lab.api.run_status",
    "Prediction": "feddbp_client.inference.trained_client",
    "RunConfig": "feddbp_common.config.run",
    "RunControl": "feddbp_lab.api.run_control",
    "RunStatus": "feddbp_lab.api.run_status",
    "TrainedClient": "feddbp_client.inference.trained_client",
    "TrainingConfig": "feddbp_common.config.training",
    "connect": "feddbp_lab.api.run_control",
}

__all__ = [
    "ClientStatus",
    "ConfigurationError",
    "DataConfig",
    "FedDBPError",
    "Federation",
    "FederationResult",
    "Incident",
    "Prediction",
    "RunConfig",
    "RunControl",
    "RunStatus",
    "TrainedClient",
    "TrainingConfig",
    "__version__",
    "connect",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = import_module("feddbp_common.version").VERSION
    elif name in _SOURCES:
        value = getattr(import_module(_SOURCES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
