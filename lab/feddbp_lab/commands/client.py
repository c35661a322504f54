"""`feddbp client drop|block|allow ID`: an operator's requests about one client of a run that goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pydantic import Field

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.command_line import settings_from, settings_parser
from feddbp_common.config.types import FrozenModel
from feddbp_common.errors import ConfigurationError, ExitCode
from feddbp_lab.commands.actions import chosen_action
from feddbp_lab.commands.operate import RequestConfig
from feddbp_lab.commands.status import as_dict, console
from feddbp_lab.control_client import Request, call_control
from feddbp_lab.terminal.status_view import absent_lines, status_line

PROG: Final = "feddbp client"
_LARGEST_ID: Final = 2**32 - 1


class ClientRequestConfig(RequestConfig):
    """Run: which server's, why, and how its status is printed."""

    reason: str = Field("", description="the reason, for the server's log and audit log")


class ClientCommandConfig(FrozenModel):
    """All options of `feddbp client`."""

    order: ClientRequestConfig = ClientRequestConfig()


@dataclass(frozen=True, kw_only=True)
class _Action:
    purpose: str
    request: Callable[[int, str], Request]
    already: str
    """The state of a client about which nothing has to be done."""
    then: str
    """The state of a client about which it has been done, and what is left to do."""


_ACTIONS: Final = MappingProxyType(
    {
        "drop": _Action(
            purpose="Removes a client from the run: no round waits for it. A daemon that still runs joins again, and "
            "takes part from the next round.",
            request=lambda client, reason: pb.DropClientRequest(client_id=client, reason=reason),
            already="is not in the run",
            then="dropped; it may join again at once",
        ),
        "block": _Action(
            purpose="Removes a client from the run with its upload of the open round, and refuses all its calls until "
            "it is allowed again, also after a restart of the server.",
            request=lambda client, reason: pb.BlockClientRequest(client_id=client, reason=reason),
            already="is blocked already",
            then="blocked; it may not join again before it is allowed",
        ),
        "allow": _Action(
            purpose="Ends a block: the client may join again, once it is started again.",
            request=lambda client, _: pb.AllowClientRequest(client_id=client),
            already="is not blocked",
            then="may join again; its daemon ended when it was refused, and has to be started again",
        ),
    }
)


def command(argv: Sequence[str]) -> int:
    summaries = {name: action.purpose.partition(":")[0] for name, action in _ACTIONS.items()}
    name, rest = chosen_action(PROG, argv, summaries, operand="ID")
    action = _ACTIONS[name]
    parser = settings_parser(f"{PROG} {name}", action.purpose, ClientCommandConfig)
    parser.usage = f"{PROG} {name} ID [options]"
    parser.add_argument("client", metavar="ID", help="the client's id")
    flags = parser.parse_args(rest)
    client, config = _client_id(flags.client), settings_from(ClientCommandConfig, flags).order
    status = asyncio.run(call_control(action.request(client, config.reason), config.server, config.credentials))
    if config.json_output:
        print(json.dumps(as_dict(status), indent=2))
    else:
        if status.unchanged:
            print(f"client {client} {action.already}: nothing had to be done")
        else:
            print(f"client {client} {action.then}")
        console().print(status_line(status), *absent_lines(status), sep="\n")
    return ExitCode.OK


def _client_id(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) > _LARGEST_ID:
        raise ConfigurationError(f"{text!r} is not a client id")
    return int(text)
