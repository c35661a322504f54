"""The command `feddbp`: dispatches to a subcommand and imports only what that one needs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Final

from feddbp_common.config.command_line import run_command
from feddbp_common.config.diagnostics import did_you_mean
from feddbp_common.errors import ConfigurationError, ExitCode
from feddbp_common.version import VERSION

PROG: Final = "feddbp"


@dataclass(frozen=True, kw_only=True)
class Command:
    """A subcommand by the name of its module: `--help` imports none, and `status` no plotting library."""

    summary: str
    module: str
    function: str = "command"
    subcommands: tuple[str, ...] = ()
    """Where the command itself tells them apart; others declare theirs to argparse."""

    def load(self) -> Callable[[Sequence[str]], int]:
        loaded: Callable[[Sequence[str]], int] = getattr(import_module(self.module), self.function)
        return loaded


COMMANDS: Final = MappingProxyType(
    {
        "demo": Command(summary="run a whole federation on this machine", module="feddbp_lab.commands.demo"),
        "experiment": Command(
            summary="run grids of federations and report on them",
            module="feddbp_lab.commands.experiment",
            subcommands=("run", "plan", "cell", "status", "report", "pack", "list"),
        ),
        "report": Command(summary="print the results of a run so far", module="feddbp_lab.commands.report"),
        "compare": Command(summary="print several runs side by side", module="feddbp_lab.commands.compare"),
        "data": Command(
            summary="check data of your own, or draw a subset of a public data set",
            module="feddbp_lab.commands.data",
            subcommands=("check", "subset"),
        ),
        "predict": Command(summary="classify images with a trained client", module="feddbp_lab.commands.predict"),
        "export": Command(
            summary="export a trained client to a file for other programs", module="feddbp_lab.commands.export"
        ),
        "privacy": Command(
            summary="measure what a finished run reveals of its clients' data",
            module="feddbp_lab.commands.privacy",
            subcommands=("audit",),
        ),
        "gpu-check": Command(
            summary="measure this machine's GPU and print what to report", module="feddbp_lab.commands.gpu_check"
        ),
        "methods": Command(summary="list the methods and their settings", module="feddbp_lab.commands.methods"),
        "dashboard": Command(
            summary="serve a page of a live run or of finished ones", module="feddbp_lab.commands.dashboard"
        ),
        "status": Command(summary="show the status of a server's run", module="feddbp_lab.commands.status"),
        "track": Command(summary="write a server's run to experiment trackers", module="feddbp_lab.commands.track"),
        "pause": Command(summary="pause a server's run", module="feddbp_lab.commands.operate", function="pause"),
        "resume": Command(summary="resume a paused run", module="feddbp_lab.commands.operate", function="resume"),
        "client": Command(
            summary="drop, block or allow a client of a server's run",
            module="feddbp_lab.commands.client",
            subcommands=("drop", "block", "allow"),
        ),
        "stop": Command(summary="end a server's run for good", module="feddbp_lab.commands.operate", function="stop"),
        "backup": Command(
            summary="copy a run's state directory while its server runs", module="feddbp_lab.commands.backup"
        ),
        "certs": Command(summary="create certificates or tokens for a federation", module="feddbp_lab.commands.certs"),
        "compose": Command(
            summary="write a Docker Compose file for a federation", module="feddbp_lab.commands.compose"
        ),
        "completion": Command(
            summary="print a completion script for your shell", module="feddbp_lab.commands.completion"
        ),
        "health": Command(summary="check the health of a server", module="feddbp_lab.commands.health"),
    }
)


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(PROG, _dispatch, argv)


def _dispatch(argv: Sequence[str]) -> int:
    name, *rest = argv or ("--help",)
    if name in ("--help", "-h", "help"):
        print(_help())
        return ExitCode.OK
    if name == "--version":
        print(f"{PROG} {VERSION}")
        return ExitCode.OK
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS) or f"; see {PROG} --help"
        raise ConfigurationError(f"no command is called {name!r}{hint}")
    try:
        return COMMANDS[name].load()(rest)
    except PermissionError as error:  # also of Path.exists() and its kin, wherever a command looks for a file
        if error.filename is None:
            raise
        raise ConfigurationError(f"{error.filename}: {error.strerror}") from None


def _help() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items())
    return (
        f"usage: {PROG} COMMAND [options]\n\n"
        f"Federated prototype learning: tools around feddbp-server and feddbp-client.\n\n"
        f"commands:\n{commands}\n\n"
        f"{PROG} COMMAND --help describes each of them."
    )


if __name__ == "__main__":
    sys.exit(main())
