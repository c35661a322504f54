"""`feddbp health`: the health of a server as an exit code, for container health checks.

The server implements grpc.health.v1, but an external probe (that of Kubernetes) calls it without TLS, and a server
whose clients have certificates rejects a handshake without one. So the check runs inside the server's container, with
a certificate that is valid for the health service alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from pydantic import Field

from feddbp_common.config.command_line import settings_from, settings_parser
from feddbp_common.config.types import FrozenModel
from feddbp_common.errors import ExitCode
from feddbp_common.rpc.credentials import OPERATOR, PROBE, CertificateDirectory
from feddbp_lab.commands.options import ConnectionConfig
from feddbp_lab.control_client import CALL_SECONDS, CHANNEL_OPTIONS, explain

PROG: Final = "feddbp health"


class ProbeConfig(ConnectionConfig):
    """Health: which server and which of its services."""

    certs: Path | None = Field(
        None,
        description="directory made by `feddbp certs`, with the probe's certificate",
        json_schema_extra={"metavar": "DIR"},
    )
    service: str = Field(
        "",
        description="check one service, e.g. feddbp.v1.Federation, which serves until the run has ended",
    )


class HealthConfig(FrozenModel):
    """All options of `feddbp health`."""

    probe: ProbeConfig = ProbeConfig()


def command(argv: Sequence[str]) -> int:
    parser = settings_parser(
        PROG, "Checks the health of a server: exit code 0 if it serves, 1 if not, 3 if none answers.", HealthConfig
    )
    probe = settings_from(HealthConfig, parser.parse_args(argv)).probe
    status = asyncio.run(_check(probe))
    print(HealthCheckResponse.ServingStatus.Name(status).lower().replace("_", " "))
    return ExitCode.OK if status == HealthCheckResponse.SERVING else ExitCode.FAILURE


async def _check(probe: ProbeConfig) -> int:
    """Returns a ServingStatus of grpc.health.v1."""
    async with _channel(probe) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            answer: HealthCheckResponse = await stub.Check(
                HealthCheckRequest(service=probe.service), timeout=CALL_SECONDS
            )
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.NOT_FOUND:
                return HealthCheckResponse.SERVICE_UNKNOWN
            subject = None if probe.certs is None else _subject(probe.certs)
            raise await explain(error, probe.server, certs=probe.certs, subject=subject) from None
        return answer.status


def _channel(probe: ProbeConfig) -> grpc.aio.Channel:
    if probe.certs is None:
        return grpc.aio.insecure_channel(probe.server, options=CHANNEL_OPTIONS)
    credentials = CertificateDirectory(probe.certs).channel_credentials(_subject(probe.certs))
    return grpc.aio.secure_channel(probe.server, credentials, options=CHANNEL_OPTIONS)


def _subject(certs: Path) -> str | None:
    """The certificate with the fewest rights; None for a server whose clients have tokens."""
    return next((subject for subject in (PROBE, OPERATOR) if (certs / f"{subject}.pem").exists()), None)
