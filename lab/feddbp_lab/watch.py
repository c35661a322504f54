"""Where a run stands, asked once or followed over lost connections until the run is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Final

import grpc

from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_common.errors import ExitCode, FedDBPError
from feddbp_common.keepalive import DEFAULT_LEASE, keepalive_options
from feddbp_common.tls import OPERATOR, Access

FINAL_PHASES: Final = (pb.PHASE_FINISHED, pb.PHASE_FAILED, pb.PHASE_STOPPED)
_CALL_SECONDS: Final = 5.0
_FIRST_DELAY: Final = 0.1
_LONGEST_DELAY: Final = 2.0
_OPEN: Final = Access()
# a server that vanished without a word is noticed, and a proxy of the environment is none of our business
_OPTIONS: Final = (*keepalive_options(DEFAULT_LEASE), ("grpc.enable_http_proxy", 0))
_ANSWERS_NO: Final = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INVALID_ARGUMENT,
)


class NoServerError(FedDBPError):
    """Nobody answers at the address."""

    exit_code = ExitCode.UNREACHABLE


class NotAnsweredError(FedDBPError):
    """Somebody answers, but not with a status."""

    exit_code = ExitCode.REFUSED


async def get_status(address: str, access: Access = _OPEN) -> pb.RunStatus:
    async with access.channel(address, OPERATOR, _OPTIONS) as channel:
        stub: pb_grpc.ControlAsyncStub = pb_grpc.ControlStub(channel)
        try:
            return await stub.GetStatus(pb.GetStatusRequest(), timeout=_CALL_SECONDS, metadata=access.metadata())
        except grpc.aio.AioRpcError as error:
            raise _translated(error, address) from None


async def watch_status(
    address: str, access: Access = _OPEN, *, patience: timedelta, clock: Callable[[], float] = time.monotonic
) -> AsyncGenerator[pb.RunStatus, None]:
    """The run's status now and at every change; ends after the last one.

    A broken stream is opened again until the server has been silent for `patience`.
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
            trouble = _translated(error, address)
            if isinstance(trouble, NotAnsweredError) or clock() - silent_since >= patience.total_seconds():
                raise trouble from None
        await asyncio.sleep(delay)
        delay = min(2 * delay, _LONGEST_DELAY)


async def _one_stream(address: str, access: Access) -> AsyncGenerator[pb.RunStatus, None]:
    # A new channel every time: the old one would keep to its own, longer, pauses before it connects again.
    async with access.channel(address, OPERATOR, _OPTIONS) as channel:
        stub: pb_grpc.ControlAsyncStub = pb_grpc.ControlStub(channel)
        async for status in stub.WatchStatus(pb.WatchStatusRequest(), metadata=access.metadata()):
            yield status


def _translated(error: grpc.aio.AioRpcError, address: str) -> FedDBPError:
    cause = (error.details() or error.code().name).strip().splitlines()[0]
    if error.code() in _ANSWERS_NO:
        return NotAnsweredError(f"the server at {address} gives no status: {cause}")
    # gRPC nests its reasons; the innermost is the one a person understands
    return NoServerError(f"no server answers at {address}: {cause.rpartition(': ')[2].lower()}")
