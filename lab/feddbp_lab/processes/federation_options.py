"""What a federation on this machine runs, and how it is configured: its server, its clients, and their directories."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from feddbp_client.config import ClientConfig, ComputeConfig, IdentityConfig, SourceConfig
from feddbp_client.privacy.ledger import EPSILON_BUDGET
from feddbp_common.config.run import RunConfig
from feddbp_common.rpc.credentials import OPERATOR, SERVER, ClientCredentials, client_subject
from feddbp_lab.processes.flags import arguments_for
from feddbp_server.config import ListenConfig, RoundsConfig, ServerConfig

_CERTS: Final = "certs"
_CLIENTS: Final = "clients"
_VISIBLE_GPUS: Final = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, kw_only=True)
class FederationOptions:
    """A run, and how it is spread over this machine."""

    run: RunConfig
    directory: Path
    """Receives everything the processes write. An unfinished run in it is resumed."""
    processes: int
    """Client processes; the clients are assigned to them round-robin."""
    data_dir: Path
    device: str = "auto"
    share_prototypes: bool = False
    """Whether the server keeps prototypes for a dashboard and for pictures."""
    gpus: tuple[int, ...] | None = None
    """CUDA devices instead of `device`, by their numbers among those this process sees; its children see no others."""
    gpu_share: float = 1.0
    """The part of a GPU's memory that the clients may take."""
    threads: int = 1
    """CPU threads of a client process."""
    frozen_weights: Path | None = None
    """The weights of a fixed network, for runs that have one."""
    track: tuple[str, ...] = ()
    """Experiment trackers that the run is written to, such as `tensorboard:DIR`."""

    @property
    def server_dir(self) -> Path:
        return server_dir(self.directory)

    @property
    def certs(self) -> Path | None:
        """Certificates of all parties, where clients have to sign; the federation makes them."""
        return self.directory / _CERTS if self.run.privacy.secure_sums else None

    @property
    def credentials(self) -> ClientCredentials:
        """The operator's."""
        return ClientCredentials(certs=self.certs and self.certs / OPERATOR)

    def server_config(self) -> ServerConfig:
        return ServerConfig(
            run=self.run,
            listen=ListenConfig(
                host="127.0.0.1",
                port=0,
                certs=self.certs and self.certs / SERVER,
                state_dir=self.server_dir,
                share_prototypes_with_operators=self.share_prototypes,
            ),
            # No deadline: a process that has exited is noticed here, and a slow client is waited for.
            rounds=RoundsConfig(min_clients=self.run.clients, round_deadline=timedelta(0)),
        )

    def server_arguments(self) -> list[str]:
        # the seed is always given: without any setting of a run the server resumes the one in its directory
        return [*arguments_for(self.server_config()), f"--seed={self.run.seed}"]

    def client_config(self, ids: list[int], address: str) -> ClientConfig:
        return ClientConfig(
            identity=IdentityConfig(
                ids=",".join(map(str, ids)),
                all_or_none=True,  # the run needs every client, so one that fails ends its process
                server=address,
                certs=self.certs and self.certs / _CLIENTS,
                state_dir=clients_dir(self.directory),
                server_moved=True,  # a resumed run has a port of its own; its server was started here
            ),
            # processes share the cores, and results do not depend on how many there are
            compute=ComputeConfig(**self._devices(), threads=self.threads),
            # the user who starts the run here also operates its clients
            source=SourceConfig(
                data_dir=self.data_dir,
                allow_import=self.run.imports,
                frozen_weights=self.frozen_weights,
                epsilon_budget=max(EPSILON_BUDGET, self.run.privacy.epsilon),
            ),
        )

    def _devices(self) -> dict[str, Any]:
        if self.gpus is None:
            return {"device": self.device}
        # by their numbers among those that the process sees
        if not self.gpus:
            return {"device": "cpu"}
        return {"gpu": tuple(range(len(self.gpus))), "gpu_memory_share": self.gpu_share}

    def certified_parties(self) -> dict[str, list[str]]:
        """The directories in `certs`, and whose certificates each has."""
        return {SERVER: [SERVER], OPERATOR: [OPERATOR], _CLIENTS: [*map(client_subject, range(self.run.clients))]}

    def environment(self) -> dict[str, str]:
        if self.gpus is None:
            return {}
        seen = list(filter(None, os.environ.get(_VISIBLE_GPUS, "").split(",")))
        return {_VISIBLE_GPUS: ",".join(seen[number] if seen else str(number) for number in self.gpus)}

    def ids_by_process(self) -> list[list[int]]:
        processes = min(self.processes, self.run.clients)
        return [list(range(first, self.run.clients, processes)) for first in range(processes)]


def server_dir(directory: Path) -> Path:
    """The --state-dir of the server of the federation in the directory."""
    return directory / "server"


def clients_dir(directory: Path) -> Path:
    """The --state-dir of all clients of the federation in the directory."""
    return directory / "clients"
