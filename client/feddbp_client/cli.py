"""The command `feddbp-client`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from feddbp_client.config import ClientConfig
from feddbp_common.cli import import_from_working_directory, run_command, settings_from, settings_parser
from feddbp_common.errors import ExitCode
from feddbp_common.logs import configure_logging

if TYPE_CHECKING:
    from feddbp_client.daemon import ClientDaemon

PROG: Final = "feddbp-client"
_GRACE_SECONDS: Final = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(PROG, _start, argv)


def _start(argv: Sequence[str]) -> int:
    parser = settings_parser(PROG, "Trains one client (or several) of a federation on private data.", ClientConfig)
    config = settings_from(ClientConfig, parser.parse_args(argv))
    if config.identity.dry_run:
        print(config.model_dump_json(indent=2))
        return ExitCode.OK
    configure_logging(as_json=config.identity.json_output, level=config.identity.log_level)
    return asyncio.run(_run(config))


async def _run(config: ClientConfig) -> int:
    if config.source.model is not None:
        import_from_working_directory()
    # torch takes a second to import: mistakes in the flags are told before that
    import torch

    from feddbp_client.connection import Connection
    from feddbp_client.daemon import ClientDaemon, DaemonOptions
    from feddbp_client.devices import choose_device, freed_after_use
    from feddbp_client.preparation import LocalOptions

    torch.set_num_threads(config.compute.threads)
    device = choose_device(gpu=config.compute.gpu, device=config.compute.device)
    options = DaemonOptions(
        state_dir=config.identity.state_dir,
        patience=config.identity.patience,
        local=LocalOptions(
            data=config.source.data,
            data_dir=config.source.data_dir,
            model=config.source.model,
            device=device,
            amp=config.compute.amp,
        ),
    )
    identity = config.identity
    connections = {
        client_id: Connection(identity.server, client_id=client_id, access=identity.access)
        for client_id in identity.client_ids
    }
    slot = asyncio.Semaphore(1)  # one client trains at a time: torch's generator and the cores are shared
    daemons = [
        ClientDaemon(client_id, connection, options, training_slot=slot)
        for client_id, connection in connections.items()
    ]
    with freed_after_use(device):
        try:
            return await _until_done_or_told_to_stop(daemons)
        finally:
            await asyncio.gather(*(connection.close() for connection in connections.values()))


async def _until_done_or_told_to_stop(daemons: Sequence[ClientDaemon]) -> int:
    """Runs all clients of this process; the first cause of trouble is the one reported.

    Ctrl-C means that somebody wants this client out of the run, so it leaves. SIGTERM is what a supervisor sends that
    will start it again, so it only goes away: the run waits for it.
    """
    everything = asyncio.gather(*(daemon.run() for daemon in daemons))
    received: list[int] = []
    loop = asyncio.get_running_loop()

    def told_to_stop(number: int) -> None:
        received.append(number)
        for daemon in daemons:
            daemon.stop()
        everything.cancel()
        # a thread in a long call of a library cannot be stopped, and a kill at any moment loses nothing
        loop.call_later(_GRACE_SECONDS, os._exit, ExitCode.INTERRUPTED)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told_to_stop, number)
    try:
        return max(await everything)
    except asyncio.CancelledError:
        if signal.SIGINT in received:
            await asyncio.gather(*(daemon.leave() for daemon in daemons))
        return ExitCode.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
