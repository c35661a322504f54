"""The command `feddbp-server`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from feddbp_common.config.command_line import run_command, settings_from, settings_parser
from feddbp_common.config.dry_run import print_options
from feddbp_common.logs import configure_logging
from feddbp_server.config import ServerConfig
from feddbp_server.process import check_open_files, prepare_process, tighten_log_file
from feddbp_server.stored_options import stored_options

PROG = "feddbp-server"


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(PROG, _serve, argv)


def _serve(argv: Sequence[str]) -> int:
    parser = settings_parser(
        PROG, "Runs the rounds of a federation and aggregates the uploads of its clients.", ServerConfig
    )
    config = settings_from(ServerConfig, parser.parse_args(argv), stored=stored_options)
    if config.listen.dry_run:
        print_options(config, config.listen.dry_run_format)
        return 0
    prepare_process()  # first: the log file is as private as those of the state directory
    configure_logging(
        as_json=config.listen.json_output, level=config.listen.log_level, file=config.operations.log_target
    )
    if config.operations.log_file is not None:
        tighten_log_file(config.operations.log_file)  # an existing file keeps the mode that it was made with
    check_open_files(config.run.clients)
    return asyncio.run(_run(config))


async def _run(config: ServerConfig) -> int:
    from feddbp_server.app import Server

    return await Server(config).serve()


if __name__ == "__main__":
    sys.exit(main())
