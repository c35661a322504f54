"""`feddbp pause`, `resume` and `stop`: an operator's requests to a run; each prints the run's status afterwards."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class _Order:
    """A request, the phases of a run in which it has taken effect, and how people are told."""

    request: Request
    expected: set[pb.Phase.ValueType]
    done: str
    already: str

    def outcome(self, before: pb.RunStatus, after: pb.RunStatus) -> str:
        if after.phase not in self.expected:
            return "nothing was changed: the run has ended"
        return self.already if before.phase in self.expected else self.done


def pause(argv: Sequence[str]) -> int:
    purpose = "Pauses the run: no round opens or closes, and deadlines stop. Clients may finish and upload."
    order = _Order(pb.PauseRequest(), {pb.PHASE_PAUSED}, done="the run is paused", already="the run was paused already")
    return _pause_or_resume("feddbp pause", purpose, argv, order)


def resume(argv: Sequence[str]) -> int:
    purpose = "Resumes a paused run; the open round gets its full deadline again."
    running = {*pb.Phase.values()} - {pb.PHASE_PAUSED, *FINAL_PHASES}
    order = _Order(pb.ResumeRequest(), running, done="the run is resumed", already="the run was not paused")
    return _pause_or_resume("feddbp resume", purpose, argv, order)


def _pause_or_resume(prog: str, purpose: str, argv: Sequence[str], order: _Order) -> int:
    config = settings_from(PauseConfig, settings_parser(prog, purpose, PauseConfig).parse_args(argv)).order
    return _send(order, config)


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
    request = pb.StopRequest(reason=config.reason)
    already = "the run was stopped already"
    return _send(_Order(request, {pb.PHASE_STOPPED}, done="the run is stopped", already=already), config)


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


def _send(order: _Order, config: RequestConfig) -> int:
    """Sends a request and prints what it did and the run's status; exit code 1 if the run is not as expected then."""
    before, status = asyncio.run(_before_and_after(order.request, config))
    if config.json_output:
        print(json.dumps(as_dict(status), indent=2))
    else:
        print(order.outcome(before, status))
        console().print(status_line(status))
    return ExitCode.OK if status.phase in order.expected else ExitCode.FAILURE


async def _before_and_after(request: Request, config: RequestConfig) -> tuple[pb.RunStatus, pb.RunStatus]:
    before = await get_status(config.server, config.credentials)
    return before, await call_control(request, config.server, config.credentials)
