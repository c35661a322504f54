"""Calls to a server's Control service: one request, or the stream of statuses, reconnected until the run has ended."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Final, TypeAlias

import grpc

from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_common.config.run import MAX_CLIENTS
from feddbp_common.errors import ExitCode, FedDBPError
from feddbp_common.printable import make_printable
from feddbp_common.rpc.credentials import OPERATOR, ClientCredentials, split_address
from feddbp_common.rpc.diagnosis import find_mistake
from feddbp_common.rpc.failures import TRANSIENT_REASONS, describe_failure, refusal_in, status_text
from feddbp_common.rpc.keepalive import DEFAULT_LEASE, keepalive_options

FINAL_PHASES: Final = (pb.PHASE_FINISHED, pb.PHASE_FAILED, pb.PHASE_STOPPED)
CALL_SECONDS: Final = 5.0
# keepalive detects a server that vanished without closing the connection; proxies of the environment are not used
CHANNEL_OPTIONS: Final = (*keepalive_options(DEFAULT_LEASE), ("grpc.enable_http_proxy", 0))
_FIRST_DELAY: Final = 0.1
_LONGEST_DELAY: Final = 2.0
_NO_CREDENTIALS: Final = ClientCredentials()
_REFUSAL_CODES: Final = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INVALID_ARGUMENT,
)

Request: TypeAlias = (
    pb.GetStatusRequest
    | pb.PauseRequest
    | pb.ResumeRequest
    | pb.StopRequest
    | pb.DropClientRequest
    | pb.BlockClientRequest
    | pb.AllowClientRequest
)


class ServerUnreachableError(FedDBPError):
    """No server answers at the address."""

    exit_code = ExitCode.UNREACHABLE


class InvalidStatusError(FedDBPError):
    """The server answers with something that is not a status."""

    exit_code = ExitCode.INVALID_REPLY


class RequestRefusedError(FedDBPError):
    """The server answers, and refuses the request."""

    exit_code = ExitCode.REFUSED

    def __init__(self, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient
        """Whether the same request may be accepted later."""


class StatusPages:
    """Joins the pages of a status."""

    def __init__(self) -> None:
        self.whole = pb.RunStatus()
        self.next_client: int | None = None
        """From which client on the next page lists; None after the last."""
        self._begun = False

    def add(self, page: pb.RunStatus) -> None:
        make_printable(page)  # a server may say anything, and clients through it
        before = self.next_client or 0
        self.next_client = page.next_client if page.HasField("next_client") else None
        if self._begun:
            self.whole.clients.extend(page.clients)
        else:
            self.whole.CopyFrom(page)
            self.whole.ClearField("next_client")
        self._begun = True
        if len(self.whole.clients) > MAX_CLIENTS or (self.next_client is not None and self.next_client <= before):
            raise InvalidStatusError("the server's status has pages without end")


async def get_status(address: str, credentials: ClientCredentials = _NO_CREDENTIALS) -> pb.RunStatus:
    return await call_control(pb.GetStatusRequest(), address, credentials)


async def call_control(
    request: Request, address: str, credentials: ClientCredentials = _NO_CREDENTIALS
) -> pb.RunStatus:
    """Makes the call the request type is named after; each returns the run's status after it."""
    async with credentials.channel(address, OPERATOR, CHANNEL_OPTIONS) as channel:
        stub: pb_grpc.ControlAsyncStub = pb_grpc.ControlStub(channel)
        try:
            call = getattr(stub, type(request).__name__.removesuffix("Request"))
            status = StatusPages()
            status.add(await call(request, timeout=CALL_SECONDS, metadata=credentials.metadata()))
            while status.next_client is not None:
                following = pb.GetStatusRequest(clients_from=status.next_client)
                status.add(await stub.GetStatus(following, timeout=CALL_SECONDS, metadata=credentials.metadata()))
            return status.whole
        except grpc.aio.AioRpcError as error:
            raise await _explain(error, address, credentials) from None


async def watch_status(
    address: str,
    credentials: ClientCredentials = _NO_CREDENTIALS,
    *,
    patience: timedelta,
    on_error: Callable[[FedDBPError], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncGenerator[pb.RunStatus, None]:
    """The run's status now and at every change; ends after the status of a run that has ended.

    A broken stream is reconnected, after a call of `on_error`, until no status has arrived for `patience`.
    """
    last_status, delay, has_answered = clock(), _FIRST_DELAY, False
    while True:
        try:
            async with aclosing(_open_stream(address, credentials)) as stream:
                async for status in stream:
                    last_status, delay, has_answered = clock(), _FIRST_DELAY, True
                    yield status
                    if status.phase in FINAL_PHASES:
                        return
            on_error(ServerUnreachableError(f"the server at {address} is shutting down"))
        except grpc.aio.AioRpcError as rpc_error:
            if has_answered:
                error = as_call_error(rpc_error, address, with_certificate=credentials.certs is not None)
            else:
                error = await _explain(rpc_error, address, credentials)
            if not _is_transient(error) or clock() - last_status >= patience.total_seconds():
                raise error from None
            on_error(error)
        await asyncio.sleep(delay)
        delay = min(2 * delay, _LONGEST_DELAY)


async def is_known_host(address: str) -> bool:
    """Whether the host of an address has a name that exists; a resolver that is not reachable says nothing of that."""
    try:
        await asyncio.get_running_loop().getaddrinfo(*split_address(address))
    except socket.gaierror as error:
        return error.errno not in (socket.EAI_NONAME, socket.EAI_NODATA)
    except UnicodeError:  # a label that is empty or too long
        return False
    return True


async def _open_stream(address: str, credentials: ClientCredentials) -> AsyncGenerator[pb.RunStatus, None]:
    # a new channel every time: a kept one would wait for its own, longer, reconnection backoff
    async with credentials.channel(address, OPERATOR, CHANNEL_OPTIONS) as channel:
        stub: pb_grpc.ControlAsyncStub = pb_grpc.ControlStub(channel)
        status = StatusPages()
        async for page in stub.WatchStatus(pb.WatchStatusRequest(paged=True), metadata=credentials.metadata()):
            status.add(page)
            if status.next_client is None:
                yield status.whole
                status = StatusPages()


async def _explain(error: grpc.aio.AioRpcError, address: str, credentials: ClientCredentials) -> FedDBPError:
    return await explain(error, address, certs=credentials.certs, subject=credentials.certified(OPERATOR))


async def explain(error: grpc.aio.AioRpcError, address: str, *, certs: Path | None, subject: str | None) -> FedDBPError:
    """The error of a first call: the mistake in the address or the credentials, if there is one."""
    described = as_call_error(error, address, with_certificate=certs is not None)
    if isinstance(described, ServerUnreachableError):
        return await find_mistake(address, certs=certs, subject=subject) or described
    return described


def _is_transient(error: FedDBPError) -> bool:
    return isinstance(error, ServerUnreachableError) or (isinstance(error, RequestRefusedError) and error.transient)


def as_call_error(error: grpc.aio.AioRpcError, address: str, *, with_certificate: bool = False) -> FedDBPError:
    refusal = refusal_in(error)
    if error.code() in _REFUSAL_CODES or refusal is not None:
        transient = refusal is not None and refusal.reason in TRANSIENT_REASONS
        message = f"the server at {address} refuses the request: {status_text(error)}"
        return RequestRefusedError(message, transient=transient)
    cause = describe_failure(error, with_certificate=with_certificate).lower()
    return ServerUnreachableError(f"no server answers at {address}: {cause}")
