"""Typed calls to the server; errors become ServerUnavailableError, worth a retry, or CallRefusedError."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeAlias

import grpc

from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_client.daemon.reply_checks import (
    check_event,
    check_joined,
    check_receipt,
    check_run,
    checking_download,
    decoded,
)
from feddbp_client.daemon.transfers import Download, received_download, upload_parts
from feddbp_common.errors import ConfigurationError, ExitCode, FedDBPError
from feddbp_common.fault_injection import fault_point
from feddbp_common.printable import printable
from feddbp_common.rpc.credentials import CertificateDirectory, ClientCredentials, client_subject
from feddbp_common.rpc.diagnosis import find_mistake
from feddbp_common.rpc.failures import TRANSIENT_REASONS, describe_failure, refusal_in, retry_after_of
from feddbp_common.rpc.keepalive import DEFAULT_LEASE, keepalive_options
from feddbp_common.rpc.server_features import (
    ADMISSION_FEATURE,
    ADMITTED_METADATA_KEY,
    PUSHED_STATE_FEATURE,
    UPLOADED_REPORT_FEATURE,
)
from feddbp_common.version import VERSION
from feddbp_common.wire import Encoded, PayloadRules

if TYPE_CHECKING:
    from feddbp_common.secure_sums.identity import Signer, Verifier

log = logging.getLogger("feddbp.client")
logging.getLogger("grpc._common").setLevel(logging.CRITICAL)
"""It logs an answer that is no message with a traceback, and gives None instead; `decoded` says so in one line."""

LATE_REASONS: Final = (
    pb.REFUSAL_REASON_WRONG_ROUND,
    pb.REFUSAL_REASON_NOT_SELECTED,
    pb.REFUSAL_REASON_ALREADY_UPLOADED,
)
"""Refusals of a late client, which waits for the next round."""
REJOIN_REASONS: Final = (pb.REFUSAL_REASON_STALE_SESSION, pb.REFUSAL_REASON_ID_IN_USE)
"""Refusals that joining again may resolve, at once or when a lease has expired."""

USED_FEATURES: Final = frozenset({ADMISSION_FEATURE, PUSHED_STATE_FEATURE, UPLOADED_REPORT_FEATURE})
"""Features of servers that this client uses."""

_UNAVAILABLE_CODES: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
)
_SHORTEST_TIMEOUT: Final = timedelta(seconds=10)
"""Lower limit of the caps: even with short rounds, a busy server is not a hung one."""
_TRANSFER_DEADLINES: Final = 4
"""A transfer's cap in round deadlines: a round without quorum is extended, so a slow upload may still count."""
_CHANNEL_OPTIONS: Final = [
    # Backoff decides when to reconnect; the channel's own backoff must not outlast it
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # despite its name, the timeout of a handshake: it must not cut off a slow link
    ("grpc.min_reconnect_backoff_ms", 10_000),
]

_EventStream: TypeAlias = "grpc.aio.UnaryStreamCall[pb.FollowRequest, pb.RoundEvent]"


class ServerUnavailableError(FedDBPError):
    """The server is unreachable, or temporarily cannot answer; `retry_after` is when it wants to be called again."""

    exit_code = ExitCode.UNREACHABLE

    def __init__(self, message: str, *, retry_after: timedelta | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class CallRefusedError(FedDBPError):
    """The server refused the call; `reason` and `field` say why."""

    exit_code = ExitCode.REFUSED

    def __init__(self, message: str, refusal: pb.Refusal) -> None:
        super().__init__(printable(message))
        self.reason = refusal.reason
        self.field = printable(refusal.field)


@dataclass(frozen=True, kw_only=True)
class CallTimeouts:
    """Timeouts for calls on a live connection; keepalive detects a dead one."""

    answer: timedelta = timedelta(seconds=30)
    """For a unary call."""
    transfer: timedelta = timedelta(hours=1)
    """For a whole upload or download."""
    quiet: timedelta = timedelta(minutes=5)
    """For an event; after that the server is probed by a unary call."""

    def under(self, deadline: timedelta) -> CallTimeouts:
        """The same, capped for a run whose rounds may close after `deadline`."""
        span = max(deadline, _SHORTEST_TIMEOUT)
        return CallTimeouts(
            answer=min(self.answer, span),
            transfer=min(self.transfer, _TRANSFER_DEADLINES * span),
            quiet=min(self.quiet, span),
        )


class Connection:
    """A channel to one server, with one client's credentials."""

    def __init__(
        self,
        address: str,
        *,
        client_id: int = 0,
        credentials: ClientCredentials = ClientCredentials(),  # noqa: B008 - frozen
        timeouts: CallTimeouts = CallTimeouts(),  # noqa: B008 - frozen
        used_features: frozenset[str] = USED_FEATURES,
    ) -> None:
        self.address = address
        self._used_features = used_features
        self._subject = client_subject(client_id)
        self._credentials = credentials
        self._metadata = credentials.metadata()
        self._timeouts = self._timeouts_without_deadline = timeouts
        self._server_features: frozenset[str] = frozenset()
        self._open_channel(keepalive_options(DEFAULT_LEASE))

    def _open_channel(self, keepalive: list[tuple[str, int]]) -> None:
        self._keepalive = keepalive
        self._channel = self._credentials.channel(self.address, self._subject, [*keepalive, *_CHANNEL_OPTIONS])
        self._stub: pb_grpc.FederationAsyncStub = pb_grpc.FederationStub(self._channel)

    async def close(self) -> None:
        await self._channel.close()

    def sum_identity(self) -> tuple[Signer, Verifier]:
        """What this client signs its messages of a secure sum with, and what it checks those of its peers by."""
        from feddbp_common.secure_sums.identity import Signer, Verifier  # slow to import, and few runs need it

        if self._credentials.certs is None or self._credentials.token_file is not None:
            raise ConfigurationError("the run has secure sums, which clients sign with their certificate; give --certs")
        certs = CertificateDirectory(self._credentials.certs)
        signer = Signer.load(certs.certificate(self._subject), certs.key(self._subject))
        return signer, Verifier(certs.authority())

    @property
    def server_identity(self) -> str:
        """What a client's directory is bound to."""
        return self._credentials.server_identity(self.address)

    async def find_mistake(self) -> FedDBPError | None:
        """What has to be changed before this server can be called; None if a retry may help."""
        subject = self._credentials.certified(self._subject)
        return await find_mistake(self.address, certs=self._credentials.certs, subject=subject)

    async def get_run(self) -> pb.GetRunResponse:
        with self._translating_errors():
            described = await self._stub.GetRun(
                pb.GetRunRequest(software_version=VERSION), timeout=self._answer_seconds, metadata=self._metadata
            )
        check_run(decoded("GetRun", described))
        self._server_features = self._used_features.intersection(described.features)
        return described

    async def join(self, request: pb.JoinRequest) -> pb.JoinResponse:
        with self._translating_errors():
            joined = await self._stub.Join(request, timeout=self._answer_seconds, metadata=self._metadata)
        await self._adopt_keepalive_of(check_joined(decoded("Join", joined)))
        return joined

    async def follow(self, session: str) -> AsyncIterator[pb.RoundEvent]:
        """Yields the server's events. Keepalive detects a dead connection, a probe a hung server."""
        with self._translating_errors():
            request = pb.FollowRequest(session=session, wants_state=PUSHED_STATE_FEATURE in self._server_features)
            call = self._stub.Follow(request, metadata=self._metadata)
            try:
                while (event := await self._next_event(call)) is not None:
                    check_event(event)
                    self._apply_deadline(event)
                    yield event
            finally:
                call.cancel()

    async def download(self, session: str, round_number: int, rules: PayloadRules) -> Download:
        with self._translating_errors():
            parts = self._stub.Download(
                pb.DownloadRequest(session=session, round=round_number),
                timeout=self._timeouts.transfer.total_seconds(),
                metadata=self._metadata,
            )
            try:
                with checking_download():
                    return await received_download(parts, rules)
            finally:
                parts.cancel()  # of a download that is refused in its middle: the server holds the rest of it

    async def upload(
        self, session: str, round_number: int, encoded: Encoded, metrics: pb.RoundMetrics | None = None
    ) -> pb.UploadReceipt:
        """Sends the header, with the report on the round if it is given, and the body once the server has admitted it.

        A call that ends while its client is sending may lose its status in gRPC's core, and with it the reason of a
        refusal. A server before 0.2.0 does not admit: it gets everything at once.
        """
        awaits_admission = self.awaits_admission
        parts = upload_parts(session, round_number, encoded, awaits_admission=awaits_admission, metrics=metrics)
        with self._translating_errors():
            call = self._stub.Upload(timeout=self._timeouts.transfer.total_seconds(), metadata=self._metadata)
            try:
                with _ended_by_server(call):
                    await call.write(next(parts))
                    fault_point("client.upload.sending")
                    # without admission comes the receipt of an earlier upload, or the refusal
                    if not awaits_admission or ADMITTED_METADATA_KEY in dict(await call.initial_metadata()):
                        for part in parts:
                            await call.write(part)
                        await call.done_writing()
                receipt = await call
            finally:
                call.cancel()  # of a caller that was cancelled: the server holds room for the upload
        check_receipt(decoded("Upload", receipt), round_number, encoded.manifest.sha256)
        return receipt

    async def advance_sum(self, request: pb.AdvanceSumRequest) -> pb.AdvanceSumResponse:
        """Gives the server a message of a step of a secure sum; the answer may be to call again."""
        with self._translating_errors():
            answer = await self._stub.AdvanceSum(request, timeout=self._answer_seconds, metadata=self._metadata)
        return decoded("AdvanceSum", answer)

    async def report(self, request: pb.ReportRequest) -> None:
        with self._translating_errors():
            await self._stub.Report(request, timeout=self._answer_seconds, metadata=self._metadata)

    async def leave(self, session: str, reason: str) -> None:
        with self._translating_errors():
            await self._stub.Leave(
                pb.LeaveRequest(session=session, reason=reason), timeout=self._answer_seconds, metadata=self._metadata
            )

    @property
    def awaits_admission(self) -> bool:
        """Whether uploads wait for the server to admit their header."""
        return ADMISSION_FEATURE in self._server_features

    @property
    def reports_with_upload(self) -> bool:
        """Whether uploads may have the report on the round with them."""
        return UPLOADED_REPORT_FEATURE in self._server_features

    @property
    def _answer_seconds(self) -> float:
        return self._timeouts.answer.total_seconds()

    async def _adopt_keepalive_of(self, lease: timedelta) -> None:
        """Reopens the channel with the keepalive of this lease, if that differs: a shorter lease needs faster pings."""
        keepalive = keepalive_options(lease)
        if keepalive != self._keepalive:
            before = self._channel
            self._open_channel(keepalive)
            await before.close(grace=self._answer_seconds)

    def _apply_deadline(self, event: pb.RoundEvent) -> None:
        if event.HasField("round_opened"):
            timeouts, opened = self._timeouts_without_deadline, event.round_opened
            self._timeouts = timeouts.under(opened.deadline.ToTimedelta()) if opened.HasField("deadline") else timeouts

    async def _next_event(self, call: _EventStream) -> pb.RoundEvent | None:
        """The next event, or None after the last; waits for as long as the server answers probes."""
        reading = asyncio.ensure_future(call.read())
        try:
            while not reading.done():
                quiet = self._timeouts.quiet.total_seconds()
                arrived, _ = await asyncio.wait((reading,), timeout=quiet)
                if not arrived:
                    log.debug("no event for %gs; probing the server at %s", quiet, self.address)
                    await self.get_run()
            event = await reading
            return event if isinstance(event, pb.RoundEvent) else None
        finally:
            reading.cancel()

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            refusal = refusal_in(error)
            if refusal is not None and refusal.reason not in TRANSIENT_REASONS:
                raise CallRefusedError(error.details() or "refused without a reason", refusal) from None
            if error.code() in _UNAVAILABLE_CODES or refusal is not None:
                cause = printable(describe_failure(error, with_certificate=self._credentials.certs is not None))
                retry_after = retry_after_of(refusal)
                what = "does not answer" if retry_after is None else "is busy"
                raise ServerUnavailableError(
                    f"the server at {self.address} {what} ({cause})", retry_after=retry_after
                ) from None
            raise CallRefusedError(f"{error.code().name}: {error.details()}", pb.Refusal()) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # not asked for: gRPC cancels a call whose connection is lost while it writes
            raise ServerUnavailableError(f"the server at {self.address} closed the connection") from None


@contextmanager
def _ended_by_server(call: grpc.aio.StreamUnaryCall[pb.UploadPart, pb.UploadReceipt]) -> Iterator[None]:
    """A write to a call that has ended fails without a reason; awaiting the call gives its status."""
    try:
        yield
    except asyncio.InvalidStateError:
        if not call.done():
            raise
