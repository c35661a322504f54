"""The command `feddbp-client`."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from feddbp_client.compute.instruction_set import restrict_instructions
from feddbp_client.config import ClientConfig
from feddbp_common.artifacts import DATA_CACHE_NAME
from feddbp_common.config.command_line import import_from_working_directory, run_command, settings_from, settings_parser
from feddbp_common.config.dry_run import print_options
from feddbp_common.cpu_cores import let_waiting_threads_sleep, limit_blas_threads
from feddbp_common.errors import ConfigurationError, ExitCode
from feddbp_common.given_paths import directory_problem
from feddbp_common.logs import configure_logging
from feddbp_common.optional_deps import CHECKPOINT_MODULES, require
from feddbp_common.rpc.credentials import connection_warning

log = logging.getLogger("feddbp.client")

PROG: Final = "feddbp-client"


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(PROG, _start, argv)


def _start(argv: Sequence[str]) -> int:
    parser = settings_parser(PROG, "Trains one client (or several) of a federation on private data.", ClientConfig)
    config = settings_from(ClientConfig, parser.parse_args(argv))  # imports no numpy, see restrict_instructions
    if config.identity.dry_run:
        print_options(config, config.identity.dry_run_format)
        return ExitCode.OK
    _check_given_path("--data", config.source.data)
    _check_given_path("--frozen-weights", config.source.frozen_weights)
    if problem := directory_problem(config.identity.state_dir):
        raise ConfigurationError(f"the state directory {config.identity.state_dir} cannot be used: {problem}")
    require("a client", CHECKPOINT_MODULES, extra="client")
    configure_logging(as_json=config.identity.json_output, level=config.identity.log_level)
    if config.compute.reproducible:
        restrict_instructions()
    return asyncio.run(_run(config))


def _check_given_path(flag: str, path: Path | None) -> None:
    """Raises unless something is there: a client that waits for its server would look for it only then."""
    if path is None:
        return
    try:
        path.expanduser().stat()
    except (OSError, RuntimeError) as error:  # the latter: `~name` of a user that does not exist
        raise ConfigurationError(f"{flag} {path}: {(getattr(error, 'strerror', '') or str(error)).lower()}") from None


async def _run(config: ClientConfig) -> int:
    if config.source.model is not None or config.source.allow_import:
        import_from_working_directory()
    let_waiting_threads_sleep()
    # torch takes a second to import: wrong flags are reported before that
    import torch

    from feddbp_client.compute.modes import set_mode
    from feddbp_client.compute.plan import plan_compute
    from feddbp_client.daemon.connection import Connection
    from feddbp_client.daemon.session_loop import ClientDaemon, DaemonOptions
    from feddbp_client.data import CacheSpace, SharedDatasetCache
    from feddbp_client.models.backbones import check_architecture
    from feddbp_client.process import run_daemons
    from feddbp_client.training.setup import LocalOptions

    identity = config.identity
    if config.source.model is not None:
        check_architecture(config.source.model)
    if warning := connection_warning(identity.server, identity.credentials):
        log.warning("%s", warning)
    set_mode(config.compute.mode)
    plan = plan_compute(config.compute, identity.client_ids)
    limit_blas_threads()
    torch.set_num_threads(plan.threads)
    for line in plan.lines():
        log.info("%s", line)
    cache = SharedDatasetCache(identity.client_ids)
    image_cache = CacheSpace(
        directory=config.source.data_cache or identity.state_dir / DATA_CACHE_NAME, size=config.source.data_cache_size
    )
    daemons, connections = [], []
    for client_id, compute in plan.clients.items():
        local = LocalOptions(
            data=config.source.data,
            data_dir=config.source.data_dir,
            model=config.source.model,
            allow_import=config.source.allow_import,
            compute=compute,
            dataset_cache=cache,
            image_cache=image_cache,
            init_from=config.source.init_from,
            frozen_weights=config.source.frozen_weights,
            skip_unreadable=config.source.skip_unreadable,
        )
        options = DaemonOptions(
            state_dir=identity.state_dir,
            patience=identity.patience,
            local=local,
            epsilon_budget=config.source.epsilon_budget,
            server_moved=identity.server_moved,
            next_run=identity.next_run,
            require_secure_sums=identity.require_secure_sums,
            name=identity.name,
        )
        connections.append(Connection(identity.server, client_id=client_id, credentials=identity.credentials))
        daemons.append(ClientDaemon(client_id, connections[-1], options, slots=plan.slots))
    try:
        return await run_daemons(daemons, all_or_none=identity.all_or_none)
    finally:
        await asyncio.gather(*(connection.close() for connection in connections))


if __name__ == "__main__":
    sys.exit(main())
