"""What clients and operators may ask of a run, and what becomes of it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.fault_injection import fault_point
from feddbp_common.wire import Encoded, Payload, PayloadRules
from feddbp_server.reporting.metrics_log import Report
from feddbp_server.run.client_events import event_for
from feddbp_server.run.engine import RunEngine
from feddbp_server.run.refusals import RefusedError
from feddbp_server.run.sessions import Client
from feddbp_server.run.state_machine import Connected, Disconnected, Event, Joined, Left, Reported, Uploaded
from feddbp_server.run.validation import (
    check_download,
    check_join,
    check_progress,
    check_report,
    check_reported_round,
    check_upload,
)
from feddbp_server.store import ReportRecord, Store, StoreError, UploadRecord

_MAX_STREAMS: Final = 4
"""Event streams a session may have open: one, and those of lost connections that were not noticed yet."""


class Coordinator(RunEngine):
    """One run, from its first start on this state directory to its end, and everybody who has to do with it."""

    @functools.cached_property
    def upload_rules(self) -> PayloadRules:
        return self.config.method_spec.upload_rules(self.config.settings, self.config.exchange_shape)

    # --- calls of clients ---------------------------------------------------------------------------------------

    async def join(self, request: pb.JoinRequest) -> tuple[Client, str]:
        if self.state.phase.is_final and request.client_id in self.state.members:
            self.notified_of_end.add(request.client_id)
            self.status_changed.publish()
        check_join(request, self.run_id, self.config, self.state)
        entering = self._tasks.begin(self._enter(request))
        try:
            return await asyncio.shield(entering)
        except asyncio.CancelledError:
            self._tasks.spawn(self._forget(entering))
            raise

    async def _enter(self, request: pb.JoinRequest) -> tuple[Client, str]:
        async with self.sessions.entrance:
            client, secret = self.sessions.open(request, self._clock())
            await self._store.run(lambda store: store.save_client(client.record()))
            fault_point("server.join.committed")
            superseded = self.sessions.enter(client)
        self.event_log.joined(client)
        try:
            await self._apply(Joined(client.client_id))
        except StoreError:
            self.sessions.close(client)  # nobody will ever hold this session: the id must not wait for its lease
            raise
        if superseded is not None and superseded.streams:
            self.run_changed.publish()  # its streams find out that they are of the past
        return client, secret

    async def _forget(self, entering: asyncio.Task[tuple[Client, str]]) -> None:
        """Whoever asked is gone and will never hold its session: the id must not wait for its lease."""
        with suppress(Exception):
            client, _ = await entering
            self.sessions.close(client)

    async def follow(self, client: Client) -> AsyncIterator[pb.RoundEvent]:
        """What the client has to know: where the run stands, and then every change of that."""
        if client.streams >= _MAX_STREAMS:
            raise RefusedError(pb.REFUSAL_REASON_BUSY, "this session has too many event streams open")
        client.streams += 1
        told: pb.RoundEvent | None = None
        try:
            await self._apply(Connected(client.client_id))
            while True:
                changed = self.run_changed.upcoming()
                if not self.sessions.is_current(client):
                    raise RefusedError(pb.REFUSAL_REASON_STALE_SESSION, "this session was superseded by a newer one")
                event = event_for(client.client_id, self.state, self.policy, draining=self.draining)
                if event != told:
                    yield event
                    told = event
                    fault_point("server.follow.told")
                if event.WhichOneof("event") == "run_ended":
                    fault_point("server.end.told")
                    self.notified_of_end.add(client.client_id)
                    self.status_changed.publish()
                    return
                if event.WhichOneof("event") == "server_draining":
                    return
                await changed.wait()
        finally:
            client.streams -= 1
            if self.sessions.is_current(client):
                client.last_seen = self._clock()
                if client.streams == 0:
                    self._tasks.spawn(self._apply_quietly(Disconnected(client.client_id)))

    async def download(self, client: Client, round_number: int) -> Encoded:
        check_download(round_number, self.state)
        return await self.aggregator.reply(client.client_id, round_number)

    def admit_upload(self, client: Client, round_number: int) -> None:
        check_upload(client.client_id, round_number, self.state)
        self._store.check()

    async def earlier_receipt(self, client: Client, round_number: int, sha256: bytes) -> pb.UploadReceipt | None:
        """The receipt of a contribution that is here already; another one for the same round is refused."""
        may_be_here = client.client_id in self.state.uploaded or round_number < self.state.round
        if not may_be_here:
            return None
        record = await self._store.run(lambda store: store.upload(client.client_id, round_number))
        return None if record is None else self._receipt_again(record, sha256)

    async def accept_upload(
        self, client: Client, round_number: int, manifest: pb.Manifest, body: bytes, payload: Payload
    ) -> pb.UploadReceipt:
        """Makes a checked contribution durable. What is given to the store before the round closes counts in it."""
        if not self.sessions.is_current(client):
            raise RefusedError(pb.REFUSAL_REASON_STALE_SESSION, "this session was superseded while it uploaded")
        self.admit_upload(client, round_number)
        self.aggregator.settle_layout(manifest)
        return await self._tasks.run_shielded(self._commit_upload(client, round_number, manifest, body, payload))

    async def _commit_upload(
        self, client: Client, round_number: int, manifest: pb.Manifest, body: bytes, payload: Payload
    ) -> pb.UploadReceipt:
        record = UploadRecord(
            client_id=client.client_id,
            round=round_number,
            sha256=manifest.sha256,
            manifest=manifest.SerializeToString(),
        )
        fault_point("server.upload.received")
        before = await self._store.run(lambda store: _save_once(store, record, body))
        fault_point("server.upload.committed")
        client.last_seen = self._clock()
        if before is None:
            self.aggregator.keep(round_number, client.client_id, payload)
            self.event_log.accepted(client, round_number, manifest)
        await self._apply(Uploaded(client.client_id, round_number))
        if before is not None:
            return self._receipt_again(before, manifest.sha256)
        return pb.UploadReceipt(round=round_number, sha256=manifest.sha256)

    def _receipt_again(self, record: UploadRecord, sha256: bytes) -> pb.UploadReceipt:
        if record.sha256 != sha256:
            raise RefusedError(
                pb.REFUSAL_REASON_ALREADY_UPLOADED,
                f"another contribution of client {record.client_id} to round {record.round} was accepted before",
                field="round",
                current_round=self.state.round,
            )
        return pb.UploadReceipt(round=record.round, sha256=sha256, duplicate=True)

    async def report_metrics(self, client: Client, round_number: int, metrics: pb.RoundMetrics) -> None:
        check_report(round_number, metrics, self.state)
        record = ReportRecord(client_id=client.client_id, round=round_number, metrics=metrics.SerializeToString())
        await self._tasks.run_shielded(self._commit_report(record))

    async def _commit_report(self, record: ReportRecord) -> None:
        is_new = await self._store.run(lambda store: store.save_report(record))
        fault_point("server.report.committed")
        if is_new:
            self.results.add(Report.from_record(record))
        await self._apply(Reported(record.client_id, record.round))

    def report_progress(self, client: Client, progress: pb.Progress) -> None:
        check_progress(progress)
        client.progress = progress
        client.last_seen = self._clock()
        self.status_changed.publish()

    def report_failure(self, client: Client, round_number: int, cause: str) -> None:
        check_reported_round(round_number, self.state)
        self.event_log.failed(client, round_number, cause)

    async def leave(self, client: Client, reason: str) -> None:
        await self._tasks.run_shielded(self._remove_client(client, reason))

    async def _remove_client(self, client: Client, reason: str) -> None:
        async with self.sessions.entrance:  # whoever takes the id next does so after all of this
            if not self.sessions.is_current(client):  # it said so twice, or somebody follows it already
                return
            # first out of the run, so that nobody waits for it even if the rest is lost in a crash
            await self._apply(Left(client.client_id))
            await self._store.run(lambda store: store.save_client(client.closed_record()))
            self.sessions.close(client)
        self.event_log.left(client, reason)
        self.run_changed.publish()
        self.status_changed.publish()

    # --- calls of operators -------------------------------------------------------------------------------------

    async def operate(self, event: Event) -> None:
        await self._tasks.run_shielded(self._apply(event))


def _save_once(store: Store, record: UploadRecord, body: bytes) -> UploadRecord | None:
    """Saves a contribution unless there is one already, which it returns."""
    before = store.upload(record.client_id, record.round)
    if before is None:
        store.save_upload(record, body)
    return before
