"""`feddbp health`: whether a server is well, as an exit code for whatever watches over containers.

The server speaks grpc.health.v1, but those who ask by themselves (Kubernetes does) ask without TLS, and where clients
have certificates nobody passes the handshake without one. So the question is asked from inside the server's container,
under a certificate that opens nothing else.
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
from feddbp_lab.control_client import CALL_SECONDS, CHANNEL_OPTIONS, as_call_error

PROG: Final = "feddbp health"


class ProbeConfig(ConnectionConfig):
    """Health: whose, and of which service."""

    certs: Path | None = Field(None, description="directory made by `feddbp certs`, with the probe's certificate")
    service: str = Field(
        "",
        description="ask after one service, e.g. feddbp.v1.Federation, which is well while the run goes on",
    )


class HealthConfig(FrozenModel):
    """All options of `feddbp health`."""

    probe: ProbeConfig = ProbeConfig()


def command(argv: Sequence[str]) -> int:
    parser = settings_parser(
        PROG, "Asks a server whether it is well: exit code 0 if so, 3 if none answers.", HealthConfig
    )
    probe = settings_from(HealthConfig, parser.parse_args(argv)).probe
    status = asyncio.run(ask(probe))
    print(HealthCheckResponse.ServingStatus.Name(status).lower().replace("_", " "))
    return ExitCode.OK if status == HealthCheckResponse.SERVING else ExitCode.FAILURE


async def ask(probe: ProbeConfig) -> int:
    """A ServingStatus of grpc.health.v1."""
    async with _channel(probe) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            answer: HealthCheckResponse = await stub.Check(
                HealthCheckRequest(service=probe.service), timeout=CALL_SECONDS
            )
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.NOT_FOUND:
                return HealthCheckResponse.SERVICE_UNKNOWN
            raise as_call_error(error, probe.server, with_certificate=probe.certs is not None) from None
        return answer.status


def _channel(probe: ProbeConfig) -> grpc.aio.Channel:
    if probe.certs is None:
        return grpc.aio.insecure_channel(probe.server, options=CHANNEL_OPTIONS)
    credentials = CertificateDirectory(probe.certs).channel_credentials(_subject(probe.certs))
    return grpc.aio.secure_channel(probe.server, credentials, options=CHANNEL_OPTIONS)


def _subject(certs: Path) -> str | None:
    """The certificate that opens least; none for a server whose clients have tokens."""
    return next((subject for subject in (PROBE, OPERATOR) if (certs / f"{subject}.pem").exists()), None)
