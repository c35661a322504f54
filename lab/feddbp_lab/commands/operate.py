"""`feddbp pause`, `resume` and `stop`: what an operator may do to a run; each tells where the run stands then."""

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
from feddbp_lab.terminal.status_table import status_line


class RequestConfig(OperatorConfig):
    """Run: whose, and how the answer is shown."""

    json_output: bool = Field(False, description="the run's status as JSON", json_schema_extra={"flag": "--json"})


class StopRequestConfig(RequestConfig):
    """Run: whose, why it ends, and how the answer is shown."""

    reason: str = Field("", description="why, for the logs of the server and of every client")
    yes: bool = Field(False, description="do not ask whether it is meant")


class PauseConfig(FrozenModel):
    """All options of `feddbp pause` and `feddbp resume`."""

    order: RequestConfig = RequestConfig()


class StopConfig(FrozenModel):
    """All options of `feddbp stop`."""

    order: StopRequestConfig = StopRequestConfig()


def pause(argv: Sequence[str]) -> int:
    purpose = "Holds the run: no round opens or closes, and deadlines stand still. Clients may finish and upload."
    return _hold("feddbp pause", purpose, argv, pb.PauseRequest(), meant={pb.PHASE_PAUSED})


def resume(argv: Sequence[str]) -> int:
    purpose = "Lets a held run go on; the open round's deadline starts afresh."
    going_on = {*pb.Phase.values()} - {pb.PHASE_PAUSED, *FINAL_PHASES}
    return _hold("feddbp resume", purpose, argv, pb.ResumeRequest(), meant=going_on)


def _hold(prog: str, purpose: str, argv: Sequence[str], request: Request, *, meant: set[pb.Phase.ValueType]) -> int:
    order = settings_from(PauseConfig, settings_parser(prog, purpose, PauseConfig).parse_args(argv)).order
    return _told(_ordered(request, order), order, meant=meant)


def stop(argv: Sequence[str]) -> int:
    parser = settings_parser(
        "feddbp stop",
        "Ends the run for good: clients are told, results so far are kept, nothing resumes it.",
        StopConfig,
    )
    order = settings_from(StopConfig, parser.parse_args(argv)).order
    if not order.yes and not _is_meant(order):
        print("the run goes on", file=sys.stderr)
        return ExitCode.FAILURE
    return _told(_ordered(pb.StopRequest(reason=order.reason), order), order, meant={pb.PHASE_STOPPED})


def _ordered(request: Request, order: RequestConfig) -> pb.RunStatus:
    return asyncio.run(call_control(request, order.server, order.access))


def _is_meant(order: StopRequestConfig) -> bool:
    if not sys.stdin.isatty():
        raise ConfigurationError(
            "a stopped run cannot be resumed, and there is nobody to ask: say --yes if it is meant"
        )
    status = asyncio.run(get_status(order.server, order.access))
    # on stderr, and not by `input`, which would mix the question into the answer's JSON
    print(
        f"{status_line(status).plain}\nStop the run at {order.server} for good? [y/N] ",
        end="",
        file=sys.stderr,
        flush=True,
    )
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _told(status: pb.RunStatus, order: RequestConfig, *, meant: set[pb.Phase.ValueType]) -> int:
    """Shows where the run stands; the exit code says whether that is what was meant."""
    if order.json_output:
        print(json.dumps(as_dict(status), indent=2))
    else:
        console().print(status_line(status))
    return ExitCode.OK if status.phase in meant else ExitCode.FAILURE
