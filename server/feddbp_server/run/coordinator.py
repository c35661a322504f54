"""What clients and operators may ask of a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.run import RunConfig
from feddbp_common.fault_injection import fault_point
from feddbp_common.wire import chunked
from feddbp_server.reporting.metrics_log import Report
from feddbp_server.run.client_events import event_for
from feddbp_server.run.engine import RunEngine
from feddbp_server.run.limits import Limits
from feddbp_server.run.refusals import RefusedError
from feddbp_server.run.sessions import Client
from feddbp_server.run.state_machine import Connected, Disconnected, Event, Joined, Left, Reported
from feddbp_server.run.validation import (
    check_download,
    check_join,
    check_progress,
    check_report,
    check_reported_round,
)
from feddbp_server.run.view import RunView
from feddbp_server.store import ReportRecord, StoreError


class Coordinator:
    """Owns the rules of what clients and operators may ask of a run; the engine carries out what it admits."""

    def __init__(self, engine: RunEngine, limits: Limits) -> None:
        self._engine = engine
        self._limits = limits
        self._received_end: set[int] = set()
        """Clients that have received the end of the run."""
        self.view = RunView(engine)
        self.sessions = engine.sessions

    @property
    def run_id(self) -> str:
        return self._engine.run_id

    @property
    def config(self) -> RunConfig:
        return self._engine.config

    # --- calls of clients ---------------------------------------------------------------------------------------

    async def join(self, request: pb.JoinRequest) -> tuple[Client, str]:
        if self._engine.state.phase.is_final and request.client_id in self._engine.state.members:
            self._confirm_end(request.client_id)
        check_join(request, self.run_id, self.config, self._engine.state, self._limits)
        entering = self._engine.begin(self._enter(request))
        try:
            return await asyncio.shield(entering)
        except asyncio.CancelledError:
            self._engine.begin(self._forget(entering))
            raise

    async def _enter(self, request: pb.JoinRequest) -> tuple[Client, str]:
        async with self.sessions.entrance:
            client, secret = self.sessions.open(request, self._engine.clock())
            await self._engine.store.run(lambda store: store.save_client(client.record()))
            fault_point("server.join.committed")
            superseded = self.sessions.enter(client)
        self._engine.event_log.joined(client)
        try:
            await self._engine.apply(Joined(client.client_id))
        except StoreError:
            self.sessions.close(client)  # nobody will ever hold this session: the id must not wait for its lease
            raise
        if superseded is not None and superseded.streams:
            self._engine.run_changed.publish()  # its streams find out that they are of the past
        return client, secret

    async def _forget(self, entering: asyncio.Task[tuple[Client, str]]) -> None:
        """Whoever asked is gone and will never hold its session: the id must not wait for its lease."""
        with suppress(Exception):
            client, _ = await entering
            self.sessions.close(client)

    async def follow(self, client: Client) -> AsyncIterator[pb.RoundEvent]:
        """What the client has to know: where the run stands, and then every change of that."""
        if client.streams >= self._limits.streams_per_session:
            raise RefusedError(pb.REFUSAL_REASON_BUSY, "this session has too many event streams open")
        client.streams += 1
        told: pb.RoundEvent | None = None
        try:
            await self._engine.apply(Connected(client.client_id))
            while True:
                changed = self._engine.run_changed.upcoming()
                if not self.sessions.is_current(client):
                    raise RefusedError(pb.REFUSAL_REASON_STALE_SESSION, "this session was superseded by a newer one")
                event = event_for(
                    client.client_id, self._engine.state, self._engine.policy, draining=self._engine.draining
                )
                if event != told:
                    yield event
                    told = event
                    fault_point("server.follow.told")
                if event.WhichOneof("event") == "run_ended":
                    fault_point("server.end.told")
                    self._confirm_end(client.client_id)
                    return
                if event.WhichOneof("event") == "server_draining":
                    return
                await changed.wait()
        finally:
            client.streams -= 1
            if self.sessions.is_current(client):
                client.last_seen = self._engine.clock()
                if client.streams == 0:
                    self._engine.apply_in_background(Disconnected(client.client_id))

    async def download(self, client: Client, round_number: int) -> AsyncIterator[pb.DownloadPart]:
        """The client's own state for a round: its manifest, then its body in chunks."""
        if client.downloads >= self._limits.downloads_per_session:
            raise RefusedError(pb.REFUSAL_REASON_BUSY, "this session has too many downloads open")
        client.downloads += 1
        try:
            check_download(round_number, self._engine.state)
            encoded = await self._engine.aggregator.reply(client.client_id, round_number)
            yield pb.DownloadPart(manifest=encoded.manifest)
            fault_point("server.download.sending")
            for piece in chunked(encoded.segments):
                yield pb.DownloadPart(chunk=pb.Chunk(data=piece))
        finally:
            client.downloads -= 1

    async def report_metrics(self, client: Client, round_number: int, metrics: pb.RoundMetrics) -> None:
        check_report(round_number, metrics, self._engine.state, self._limits)
        record = ReportRecord(client_id=client.client_id, round=round_number, metrics=metrics.SerializeToString())
        await self._engine.run_shielded(self._commit_report(record))

    async def _commit_report(self, record: ReportRecord) -> None:
        is_new = await self._engine.store.run(lambda store: store.save_report(record))
        fault_point("server.report.committed")
        if is_new:
            self._engine.results.add(Report.from_record(record))
        await self._engine.apply(Reported(record.client_id, record.round))

    def report_progress(self, client: Client, progress: pb.Progress) -> None:
        check_progress(progress)
        client.progress = progress
        client.last_seen = self._engine.clock()
        self._engine.status_changed.publish()

    def report_failure(self, client: Client, round_number: int, cause: str) -> None:
        check_reported_round(round_number, self._engine.state)
        self._engine.event_log.failed(client, round_number, cause)

    async def leave(self, client: Client, reason: str) -> None:
        await self._engine.run_shielded(self._remove_client(client, reason))

    async def _remove_client(self, client: Client, reason: str) -> None:
        async with self.sessions.entrance:  # whoever takes the id next does so after all of this
            if not self.sessions.is_current(client):  # it said so twice, or somebody follows it already
                return
            # first out of the run, so that nobody waits for it even if the rest is lost in a crash
            await self._engine.apply(Left(client.client_id))
            await self._engine.store.run(lambda store: store.save_client(client.closed_record()))
            self.sessions.close(client)
        self._engine.event_log.left(client, reason)
        self._engine.run_changed.publish()
        self._engine.status_changed.publish()

    async def ended(self, *, linger: timedelta) -> None:
        """Returns once the run is over and every member has received its end, or `linger` after it was over."""
        engine = self._engine
        while not engine.state.phase.is_final:
            await engine.run_changed.upcoming().wait()
        give_up = engine.clock() + linger.total_seconds()
        while not engine.state.members <= self._received_end and engine.clock() < give_up:
            changed = engine.status_changed.upcoming()
            try:
                await asyncio.wait_for(changed.wait(), timeout=max(0.0, give_up - engine.clock()))
            except TimeoutError:
                break

    def _confirm_end(self, client_id: int) -> None:
        self._received_end.add(client_id)
        self._engine.status_changed.publish()

    # --- calls of operators -------------------------------------------------------------------------------------

    async def operate(self, event: Event) -> None:
        await self._engine.run_shielded(self._engine.apply(event))
