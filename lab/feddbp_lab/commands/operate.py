"""`feddbp pause`, `resume` and `stop`: an operator's requests to a run; each prints the run's status afterwards."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence

from pydantic import Field

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.command_line import settings_from, settings_parser
from feddbp_common.config.types import FrozenModel
from feddbp_common.errors import ConfigurationError, ExitCode
from feddbp_lab.commands.options import OperatorConfig
from feddbp_lab.commands.status import as_dict, console
from feddbp_lab.control_client import FINAL_PHASES, Request, call_control, get_status
from feddbp_lab.terminal.status_view import status_line


class RequestConfig(OperatorConfig):
    """Run: which server's, and how its status is printed."""

    json_output: bool = Field(False, description="print the run's status as JSON", json_schema_extra={"flag": "--json"})


class StopRequestConfig(RequestConfig):
    """Run: which server's, why it ends, and how its status is printed."""

    reason: str = Field("", description="the reason, for the logs of the server and of every client")
    yes: bool = Field(False, description="do not ask for confirmation")


class PauseConfig(FrozenModel):
    """All options of `feddbp pause` and `feddbp resume`."""

    order: RequestConfig = RequestConfig()


class StopConfig(FrozenModel):
    """All options of `feddbp stop`."""

    order: StopRequestConfig = StopRequestConfig()


def pause(argv: Sequence[str]) -> int:
    purpose = "Pauses the run: no round opens or closes, and deadlines stop. Clients may finish and upload."
    return _pause_or_resume("feddbp pause", purpose, argv, pb.PauseRequest(), expected={pb.PHASE_PAUSED})


def resume(argv: Sequence[str]) -> int:
    purpose = "Resumes a paused run; the open round gets its full deadline again."
    running = {*pb.Phase.values()} - {pb.PHASE_PAUSED, *FINAL_PHASES}
    return _pause_or_resume("feddbp resume", purpose, argv, pb.ResumeRequest(), expected=running)


def _pause_or_resume(
    prog: str, purpose: str, argv: Sequence[str], request: Request, *, expected: set[pb.Phase.ValueType]
) -> int:
    config = settings_from(PauseConfig, settings_parser(prog, purpose, PauseConfig).parse_args(argv)).order
    return _send(request, config, expected=expected)


def stop(argv: Sequence[str]) -> int:
    parser = settings_parser(
        "feddbp stop",
        "Ends the run: clients are notified and exit, results so far are kept. feddbp-server --reopen continues it.",
        StopConfig,
    )
    config = settings_from(StopConfig, parser.parse_args(argv)).order
    if not config.yes and not _confirmed(config):
        print("not stopped: the run continues", file=sys.stderr)
        return ExitCode.FAILURE
    return _send(pb.StopRequest(reason=config.reason), config, expected={pb.PHASE_STOPPED})


def _confirmed(config: StopRequestConfig) -> bool:
    if not sys.stdin.isatty():
        raise ConfigurationError(
            "this ends the run for all clients, and standard input is no terminal: confirm by --yes"
        )
    status = asyncio.run(get_status(config.server, config.credentials))
    # on stderr, and not by `input`, which would mix the question into the JSON output
    print(
        f"{status_line(status).plain}\nStop the run at {config.server}? [y/N] ",
        end="",
        file=sys.stderr,
        flush=True,
    )
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _send(request: Request, config: RequestConfig, *, expected: set[pb.Phase.ValueType]) -> int:
    """Sends a request and prints the run's status; exit code 1 if the run is not in an expected phase then."""
    status = asyncio.run(call_control(request, config.server, config.credentials))
    if config.json_output:
        print(json.dumps(as_dict(status), indent=2))
    else:
        console().print(status_line(status))
    return ExitCode.OK if status.phase in expected else ExitCode.FAILURE
