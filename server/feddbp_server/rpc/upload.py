"""Uploads: admitted on their header, received within limits, committed before the receipt is sent."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.errors import PayloadError
from feddbp_common.fault_injection import fault_point
from feddbp_common.rpc.server_features import ADMITTED_METADATA_KEY
from feddbp_common.wire import BodyAssembler, check_manifest, check_values, decode, digest_of
from feddbp_server.aggregation.aggregator import KeptUpload
from feddbp_server.run.admission.fairness import SlotsWithTimeout
from feddbp_server.run.admission.limits import Limits
from feddbp_server.run.admission.refusals import RefusedError
from feddbp_server.run.admission.validation import check_report, wrong_round
from feddbp_server.run.engine import RunEngine
from feddbp_server.run.reports import commit_report, count_report, report_record
from feddbp_server.run.sessions import Session
from feddbp_server.run.state_machine.events import Uploaded
from feddbp_server.run.state_machine.state import Phase, RunState
from feddbp_server.store import Announcement, ReportRecord, Store, UploadRecord

ADMITTED: Final = ((ADMITTED_METADATA_KEY, "1"),)
Admit = Callable[[], Awaitable[None]]

_CHECK_INLINE_BYTES: Final = 1 << 20
"""Bodies up to this size are checked on the event loop: a thread would cost more than the check."""
_LOSS_SECONDS: Final = 0.02
"""A lost connection ends a stream, too; this long after, gRPC cancels the call and the client is not to blame."""


Part: TypeAlias = pb.UploadPart | memoryview
"""Of an upload: its header, or the bytes of a chunk."""


class PartStream:
    """The parts of one upload, and whether its client may still be sending some."""

    def __init__(self, parts: AsyncIterator[Part]) -> None:
        self._parts = parts
        self._sending = True
        self._begun = False

    async def next(self) -> Part | None:
        """Returns None after the last part."""
        part = await anext(self._parts, None)
        if part is None:
            self._sending = False
        elif isinstance(part, pb.UploadPart) and part.HasField("chunk"):
            part = memoryview(part.chunk.data)
        elif not self._begun and isinstance(part, pb.UploadPart) and part.header.awaits_admission:
            self._sending = False  # until it is admitted; a header further on is an error, and more may follow it
        self._begun = True
        return part

    def admitted(self) -> None:
        self._sending = True

    async def discard(self, limits: Limits) -> None:
        """Reads and drops what the client still sends, within limits.

        gRPC may replace the status of a call by an internal error if the call ends while the client is sending.
        """
        received = 0
        if not self._sending:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.discard_total.total_seconds()):
                while self._sending and received <= limits.discard_bytes:
                    async with asyncio.timeout(limits.discard_wait.total_seconds()):
                        received += await self._discard_part(limits)

    async def _discard_part(self, limits: Limits) -> int:
        """Returns the bytes of the next part; one that cannot be decoded counts for the largest there can be."""
        try:
            part = await self.next()
        except RefusedError:
            return limits.message_bytes
        return len(part) if isinstance(part, memoryview) else 0


@dataclass(frozen=True, kw_only=True)
class CheckedUpload:
    """An upload that was received as a whole and has passed all checks of its content."""

    session: Session
    header: pb.UploadHeader
    body: bytes
    kept: KeptUpload
    announced: Announcement | None = None
    """Of its job in the store."""


class _Incoming:
    """An upload that is being received; it can be ended while it waits for its next part."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._timeout: asyncio.Timeout | None = None
        self._superseded = False

    def end(self) -> None:
        """Ends the upload of a session that was superseded."""
        self._superseded = True
        if self._timeout is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time())

    async def read(self, parts: PartStream, add: Callable[[memoryview], None], wait: timedelta) -> None:
        """Reads the rest of the parts, each within its time.

        There is one timer for all of them, which a part sets again once a tenth of it has passed.
        """
        loop, seconds = asyncio.get_running_loop(), wait.total_seconds()
        set_at = loop.time()
        try:
            async with asyncio.timeout(0 if self._superseded else seconds) as self._timeout:
                while (part := await parts.next()) is not None:
                    if not isinstance(part, memoryview):
                        raise PayloadError("chunk", "only chunks may follow the header")
                    add(part)
                    fault_point("server.upload.receiving")
                    now = loop.time()
                    if now > set_at + seconds / 10 and not self._superseded:
                        self._timeout.reschedule(now + seconds)
                        set_at = now
        except TimeoutError:
            raise _superseded() if self._superseded else _stalled(wait) from None
        finally:
            self._timeout = None


class Uploads:
    """Owns the uploads that are being received and the bytes they may take; the engine owns them once committed."""

    def __init__(self, engine: RunEngine, limits: Limits) -> None:
        self._engine = engine
        self._limits = limits
        self._rules = engine.aggregator.upload_rules
        self._wire_type = engine.config.wire_type
        self._bytes_in_flight = 0
        self._slots = SlotsWithTimeout(limits.uploads_at_once, limits.upload_wait)
        self._incoming: dict[int, _Incoming] = {}

    @asynccontextmanager
    async def reading(self, parts: AsyncIterator[Part]) -> AsyncIterator[PartStream]:
        """Reads an upload to its end before the call ends, so that the client receives its receipt or refusal."""
        stream = PartStream(parts)
        try:
            yield stream
        except Exception:
            await stream.discard(self._limits)
            raise
        await stream.discard(self._limits)

    async def header(self, parts: PartStream) -> pb.UploadHeader:
        """The first part of an upload, which says whose it is."""
        try:
            async with asyncio.timeout(self._limits.header_wait.total_seconds()):
                first = await parts.next()
        except TimeoutError:
            raise _stalled(self._limits.header_wait) from None
        if not isinstance(first, pb.UploadPart) or not first.HasField("header"):
            raise RefusedError(
                pb.REFUSAL_REASON_INVALID_REQUEST, "an upload has to begin with its header", field="header"
            )
        return first.header

    async def upload(
        self, session: Session, header: pb.UploadHeader, parts: PartStream, admit: Admit
    ) -> pb.UploadReceipt:
        """Admits, receives and commits an upload; one that was committed before only gets its receipt again."""
        earlier = await self._earlier_receipt(session, header)
        if earlier is not None:
            await self._commit_report_again(session, header)
            return earlier
        async with self._admit(session, header) as incoming:
            await admit()
            parts.admitted()
            self._engine.history.upload_begun(session.client_id, header.round)
            announced = self._engine.store.announce()
            try:
                body, kept = await self._receive(incoming, header.manifest, parts)
                return await self.commit(
                    CheckedUpload(session=session, header=header, body=body, kept=kept, announced=announced)
                )
            finally:
                announced.end()

    async def _earlier_receipt(self, session: Session, header: pb.UploadHeader) -> pb.UploadReceipt | None:
        state = self._engine.state
        may_be_stored = session.client_id in state.uploaded or header.round < state.round
        if not may_be_stored:
            return None
        record = await self._engine.store.run(lambda store: store.upload(session.client_id, header.round))
        return None if record is None else self._receipt_again(record, header.manifest.sha256)

    async def _commit_report_again(self, session: Session, header: pb.UploadHeader) -> None:
        """Of an upload that was committed before, perhaps without its report: by a client of an earlier version."""
        if header.HasField("metrics"):
            self._check_report(session, header)
            record = report_record(session, header.round, header.metrics)
            await self._engine.tasks.run_shielded(commit_report(self._engine, record))

    # --- admit ---

    @asynccontextmanager
    async def _admit(self, session: Session, header: pb.UploadHeader) -> AsyncIterator[_Incoming]:
        """Refuses on the header what has no chance, and holds room for the rest; nothing else was read by then."""
        self._check_open(session, header)
        if header.HasField("metrics"):
            self._check_report(session, header)
        check_manifest(
            header.manifest,
            self._rules,
            max_bytes=self._limits.upload_bytes,
            label_counts=session.label_counts,
        )
        self._engine.aggregator.check_layout(header.manifest)
        with self._alone(session) as incoming:
            has_slot = await self._slots.take()
            try:
                with self._room_for(header.manifest.total_bytes):
                    yield incoming
            finally:
                if has_slot:
                    self._slots.release()

    def _check_report(self, session: Session, header: pb.UploadHeader) -> None:
        engine = self._engine
        exact = engine.config.privacy.has_exact_counts
        check_report(header.round, header.metrics, session.data, engine.state, self._limits, exact_counts=exact)

    def _check_open(self, session: Session, header: pb.UploadHeader) -> None:
        self._engine.check_allowed(session.client_id)
        check_upload(session.client_id, header.round, self._engine.state)
        self._engine.store.check()

    @contextmanager
    def _alone(self, session: Session) -> Iterator[_Incoming]:
        """The only upload of a client; one of an earlier session is ended."""
        before = self._incoming.get(session.client_id)
        if before is not None and before.session is session:
            raise RefusedError(pb.REFUSAL_REASON_BUSY, f"client {session.client_id} is uploading already")
        if before is not None:
            before.end()  # of an earlier session: its commit would be refused
        incoming = self._incoming[session.client_id] = _Incoming(session)
        try:
            yield incoming
        finally:
            if self._incoming.get(session.client_id) is incoming:
                del self._incoming[session.client_id]

    @contextmanager
    def _room_for(self, size: int) -> Iterator[None]:
        if self._bytes_in_flight + size > self._limits.bytes_in_flight:
            raise RefusedError(
                pb.REFUSAL_REASON_BUSY,
                "too many uploads at once; try again in a moment",
                retry_after=self._limits.upload_wait,
            )
        self._bytes_in_flight += size
        try:
            yield
        finally:
            self._bytes_in_flight -= size

    # --- receive ---

    async def _receive(self, incoming: _Incoming, manifest: pb.Manifest, parts: PartStream) -> tuple[bytes, KeptUpload]:
        """The body, assembled from its chunks, and what is kept of it, once digest and values are checked."""
        assembler = BodyAssembler(manifest.total_bytes)
        await incoming.read(parts, assembler.add, self._limits.chunk_wait)
        if not assembler.complete:
            await asyncio.sleep(_LOSS_SECONDS)
        body = assembler.body()
        if len(body) <= _CHECK_INLINE_BYTES:
            return body, self._checked(manifest, body)
        return body, await asyncio.to_thread(self._checked, manifest, body)

    def _checked(self, manifest: pb.Manifest, body: bytes) -> KeptUpload:
        if not hmac.compare_digest(digest_of(manifest, [body]), manifest.sha256):
            raise PayloadError("sha256", "does not match what was received")
        payload = decode(manifest, body)
        check_values(payload, self._rules, real_type=self._wire_type)
        # not after the commit: receipts of a group would wait for this, one after the other
        return self._engine.aggregator.kept_part(payload)

    # --- commit ---

    async def commit(self, upload: CheckedUpload) -> pb.UploadReceipt:
        """Makes an upload durable. What is given to the store before the round closes counts in it."""
        return await self._engine.tasks.run_shielded(self._commit(upload))

    async def _commit(self, upload: CheckedUpload) -> pb.UploadReceipt:
        # so that the store and the state agree on whether a client that is dropped or blocked has uploaded
        async with self._engine.sessions.lock_of(upload.session.client_id):
            return await self._store_upload(upload)

    async def _store_upload(self, upload: CheckedUpload) -> pb.UploadReceipt:
        engine, session, header, manifest = self._engine, upload.session, upload.header, upload.header.manifest
        # nothing is awaited from here until the store has the job: the round is open when it gets the upload
        if not engine.sessions.is_current(session):
            raise _superseded()
        self._check_open(session, header)
        record = UploadRecord(
            client_id=session.client_id,
            round=header.round,
            sha256=manifest.sha256,
            manifest=manifest.SerializeToString(),
        )
        report = report_record(session, header.round, header.metrics) if header.HasField("metrics") else None
        fault_point("server.upload.received")
        before, is_new_report = await engine.store.run(
            lambda store: _save_once(store, record, upload.body, report), upload.announced
        )
        fault_point("server.upload.committed")
        session.last_seen = engine.clock()
        if before is None:
            engine.aggregator.cache(header.round, session.client_id, upload.kept)
            engine.event_log.accepted(session, header.round, manifest)
            engine.history.upload_ended(session.client_id, header.round)
        if report is not None and is_new_report:
            count_report(engine, report)
        await engine.apply(Uploaded(session.client_id, header.round, reported=report is not None))
        if before is not None:
            return self._receipt_again(before, manifest.sha256)
        return pb.UploadReceipt(round=header.round, sha256=manifest.sha256)

    def _receipt_again(self, record: UploadRecord, sha256: bytes) -> pb.UploadReceipt:
        """The receipt of an upload that is stored already; another one for the same round is refused."""
        if record.sha256 != sha256:
            raise RefusedError(
                pb.REFUSAL_REASON_ALREADY_UPLOADED,
                f"another upload of client {record.client_id} to round {record.round + 1} was accepted before",
                field="round",
                current_round=self._engine.state.round,
            )
        return pb.UploadReceipt(round=record.round, sha256=sha256, duplicate=True)


def check_upload(client_id: int, round_number: int, state: RunState) -> None:
    """Admits uploads of selected clients to the open round, also while the run is paused."""
    if Phase.COLLECTING not in (state.phase, state.held_phase) or round_number != state.round:
        raise wrong_round(round_number, state)
    if client_id not in state.selected:
        raise RefusedError(
            pb.REFUSAL_REASON_NOT_SELECTED,
            f"client {client_id} was not selected for round {round_number + 1}",
            field="round",
            current_round=state.round,
        )


def _save_once(
    store: Store, record: UploadRecord, body: bytes, report: ReportRecord | None
) -> tuple[UploadRecord | None, bool]:
    """Saves an upload unless its client has one in this round already, which it returns, and the report with it.

    Also returns whether the report was new.
    """
    before = store.upload(record.client_id, record.round)
    if before is None:
        store.save_upload(record, body)
    return before, report is not None and store.save_report(report)


def _superseded() -> RefusedError:
    return RefusedError(pb.REFUSAL_REASON_STALE_SESSION, "this session was superseded while it uploaded")


def _stalled(wait: timedelta) -> RefusedError:
    """Busy, not invalid: a client on a slow network may try again."""
    return RefusedError(pb.REFUSAL_REASON_BUSY, f"nothing arrived for {wait.total_seconds():g}s", field="chunk")
