"""Where a run stands, asked once or followed over lost connections until the run is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Final, TypeAlias

import grpc

from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_common.errors import ExitCode, FedDBPError
from feddbp_common.rpc.credentials import OPERATOR, ClientCredentials
from feddbp_common.rpc.failures import TRANSIENT_REASONS, describe_failure, refusal_in, status_text
from feddbp_common.rpc.keepalive import DEFAULT_LEASE, keepalive_options

FINAL_PHASES: Final = (pb.PHASE_FINISHED, pb.PHASE_FAILED, pb.PHASE_STOPPED)
CALL_SECONDS: Final = 5.0
_FIRST_DELAY: Final = 0.1
_LONGEST_DELAY: Final = 2.0
_OPEN: Final = ClientCredentials()
# a server that vanished without a word is noticed, and a proxy of the environment is none of our business
CHANNEL_OPTIONS: Final = (*keepalive_options(DEFAULT_LEASE), ("grpc.enable_http_proxy", 0))
_ANSWERS_NO: Final = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INVALID_ARGUMENT,
)


class ServerUnreachableError(FedDBPError):
    """Nobody answers at the address."""

    exit_code = ExitCode.UNREACHABLE


class RequestRefusedError(FedDBPError):
    """Somebody answers, but not what was asked."""

    exit_code = ExitCode.REFUSED

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing
        """Whether the same question may get an answer later."""


Request: TypeAlias = pb.GetStatusRequest | pb.PauseRequest | pb.ResumeRequest | pb.StopRequest


async def get_status(address: str, access: ClientCredentials = _OPEN) -> pb.RunStatus:
    return await call_control(pb.GetStatusRequest(), address, access)


async def call_control(request: Request, address: str, access: ClientCredentials = _OPEN) -> pb.RunStatus:
    """Makes the call a request is named after; every one is answered with where the run stands then."""
    async with access.channel(address, OPERATOR, CHANNEL_OPTIONS) as channel:
        stub: pb_grpc.ControlAsyncStub = pb_grpc.ControlStub(channel)
        try:
            call = getattr(stub, type(request).__name__.removesuffix("Request"))
            status: pb.RunStatus = await call(request, timeout=CALL_SECONDS, metadata=access.metadata())
            return status
        except grpc.aio.AioRpcError as error:
            raise as_call_error(error, address, with_certificate=access.certs is not None) from None


async def watch_status(
    address: str,
    access: ClientCredentials = _OPEN,
    *,
    patience: timedelta,
    on_error: Callable[[FedDBPError], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncGenerator[pb.RunStatus, None]:
    """The run's status now and at every change; ends after the last one.

    A broken stream is opened again until the server has been silent for `patience`; `on_error` is told every time.
    """
    silent_since, delay = clock(), _FIRST_DELAY
    while True:
        try:
            async with aclosing(_one_stream(address, access)) as stream:
                async for status in stream:
                    silent_since, delay = clock(), _FIRST_DELAY
                    yield status
                    if status.phase in FINAL_PHASES:
                        return
        except grpc.aio.AioRpcError as error:
            trouble = as_call_error(error, address, with_certificate=access.certs is not None)
            final = isinstance(trouble, RequestRefusedError) and not trouble.passing
            if final or clock() - silent_since >= patience.total_seconds():
                raise trouble from None
            on_error(trouble)
        await asyncio.sleep(delay)
        delay = min(2 * delay, _LONGEST_DELAY)


async def _one_stream(address: str, access: ClientCredentials) -> AsyncGenerator[pb.RunStatus, None]:
    # A new channel every time: the old one would keep to its own, longer, pauses before it connects again.
    async with access.channel(address, OPERATOR, CHANNEL_OPTIONS) as channel:
        stub: pb_grpc.ControlAsyncStub = pb_grpc.ControlStub(channel)
        async for status in stub.WatchStatus(pb.WatchStatusRequest(), metadata=access.metadata()):
            yield status


def as_call_error(error: grpc.aio.AioRpcError, address: str, *, with_certificate: bool = False) -> FedDBPError:
    refusal = refusal_in(error)
    if error.code() in _ANSWERS_NO or refusal is not None:
        passing = refusal is not None and refusal.reason in TRANSIENT_REASONS
        return RequestRefusedError(f"the server at {address} refuses to answer: {status_text(error)}", passing=passing)
    cause = describe_failure(error, with_certificate=with_certificate).lower()
    return ServerUnreachableError(f"no server answers at {address}: {cause}")
