"""What clients and operators may ask of a run: join, follow, download, report, leave; pause, resume, stop.

The one call that is not here is the upload, which has a module of its own, `rpc/upload.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import timedelta
from itertools import chain

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.features import required_features
from feddbp_common.config.run import RunConfig
from feddbp_common.fault_injection import fault_point
from feddbp_common.printable import printable
from feddbp_common.wire import chunked
from feddbp_server.run.admission.fairness import CallsPerClient, FairSlots
from feddbp_server.run.admission.join_limiter import JoinLimiter
from feddbp_server.run.admission.limits import Limits
from feddbp_server.run.admission.refusals import RefusedError
from feddbp_server.run.admission.validation import (
    check_client_id,
    check_download,
    check_images,
    check_join,
    check_progress,
    check_report,
    check_reported_round,
)
from feddbp_server.run.client_events import event_for
from feddbp_server.run.engine import RunEngine
from feddbp_server.run.participants import Candidates
from feddbp_server.run.pushed_states import EventWithState, PushedStates, announced_round
from feddbp_server.run.reports import commit_report, report_record
from feddbp_server.run.sessions import Session
from feddbp_server.run.state_machine.events import (
    Allowed,
    Blocked,
    Connected,
    Disconnected,
    EndReceived,
    Event,
    Joined,
    Left,
    PauseRequested,
    ResumeRequested,
    Skipped,
    StopRequested,
)
from feddbp_server.run.state_machine.state import Phase
from feddbp_server.run.view import RunView
from feddbp_server.store import StoreError


class Coordinator:
    """Owns the rules of what clients and operators may ask of a run; the engine carries out what they admit."""

    def __init__(self, engine: RunEngine, limits: Limits) -> None:
        self.view = RunView(engine)
        self.sessions = engine.sessions
        self.check_allowed = engine.check_allowed
        self.required_features = required_features(engine.config)
        self._engine = engine
        self._limits = limits
        self._states = PushedStates(engine, limits)
        self._joins = CallsPerClient("joins", limits.joins_per_client)
        self._join_limiter = JoinLimiter(limits, engine.clock)
        self._downloads = CallsPerClient("downloads", limits.downloads_per_client)
        self._replies = FairSlots(limits.replies)
        self._candidates = Candidates(
            admitted=lambda: engine.state.selected - engine.state.skipped,
            awaited=lambda: engine.state.selected - engine.state.skipped - engine.state.set_aside,
        )
        self._sum_steps = CallsPerClient("steps of a sum", limits.sum_steps_per_client)
        self._joining: dict[int, Session] = {}
        """Sessions that are about to be in force."""
        self._received_end: set[int] = set()
        """Clients that have received the end of the run from this server."""

    @property
    def run_id(self) -> str:
        return self._engine.run_id

    @property
    def config(self) -> RunConfig:
        return self._engine.config

    # --- clients ---

    async def join(self, request: pb.JoinRequest, *, peer: str = "") -> tuple[Session, str]:
        """A session for a client, and its secret."""
        state = self._engine.state
        self.check_allowed(request.client_id)
        if state.phase.is_final and request.client_id in state.members:
            self._confirm_end(request.client_id)  # the refusal below says so
        check_join(request, self.run_id, self.config, state, self._limits, required_features=self.required_features)
        caller = asyncio.Event()
        joining = self._engine.tasks.begin_for_caller(self._commit_join(request, peer, gone=caller))
        try:
            return await asyncio.shield(joining)
        except asyncio.CancelledError:
            caller.set()
            self._engine.tasks.begin(self._release(joining))
            raise

    async def _commit_join(self, request: pb.JoinRequest, peer: str, *, gone: asyncio.Event) -> tuple[Session, str]:
        with self._join_limiter.one_more():
            return await self._commit_admitted_join(request, peer, gone=gone)

    async def _commit_admitted_join(
        self, request: pb.JoinRequest, peer: str, *, gone: asyncio.Event
    ) -> tuple[Session, str]:
        engine, client_id = self._engine, request.client_id
        async with self._joins.one_more(client_id), self.sessions.lock_of(client_id):
            if gone.is_set():
                raise RefusedError(pb.REFUSAL_REASON_BUSY, f"client {client_id} hung up before it could join")
            self.check_allowed(client_id)
            check_images(request, self.config, chain(self._joining.values(), self.sessions.in_any_order()))
            session, secret = self.sessions.prepare_join(request, engine.clock())
            session.peer = peer
            self._joining[client_id] = session
            try:
                await engine.save_join(session.record())
            finally:
                del self._joining[client_id]
            fault_point("server.join.committed")
            superseded = self.sessions.join(session)
        engine.event_log.joined(session)
        engine.history.joined(session)
        try:
            await engine.apply(Joined(session.client_id))
        except StoreError:
            self.sessions.leave(session)  # the caller never receives it: release the id now, not at lease expiry
            raise
        engine.lost_clients.watch(session)
        if superseded is not None:
            engine.lost_clients.forget(superseded)
            if superseded.streams:
                engine.run_changed.publish()  # ends the event streams of the superseded session
        return session, secret

    async def _release(self, joining: asyncio.Task[tuple[Session, str]]) -> None:
        """Ends a session whose caller was cancelled before receiving it: releases the id now, not at lease expiry."""
        with suppress(Exception):
            session, _ = await joining
            self.sessions.leave(session)

    async def follow(
        self, session: Session, *, peer: str = "", wants_state: bool = False
    ) -> AsyncGenerator[pb.RoundEvent | EventWithState, None]:
        """The run as this client sees it, and then every change of that; ends when the client leaves.

        With `wants_state` the first event of a round has the client's state in it, if it is small.
        """
        if session.streams >= self._limits.streams_per_session:
            raise RefusedError(pb.REFUSAL_REASON_BUSY, "this session has too many event streams open")
        engine = self._engine
        session.peer = peer or session.peer
        session.streams += 1
        engine.lost_clients.forget(session)
        sent: pb.RoundEvent | None = None
        pushed: int | None = None
        try:
            await engine.tasks.run_shielded(engine.apply(Connected(session.client_id)))
            while True:
                changed = engine.run_changed.upcoming()
                if self.sessions.has_left(session):
                    return
                if not self.sessions.is_current(session):
                    raise RefusedError(pb.REFUSAL_REASON_STALE_SESSION, "this session was superseded by a newer one")
                self.check_allowed(session.client_id)  # a block may have failed to end the session
                event = event_for(session.client_id, engine.state, engine.policy, draining=engine.draining)
                if event != sent:
                    if wants_state and announced_round(event) not in (None, pushed):
                        pushed = announced_round(event)
                        async with self._states.with_state(session, event) as announcement:
                            yield announcement
                    else:
                        yield event
                    sent = event
                    fault_point("server.follow.notified")
                if event.WhichOneof("event") == "run_ended":
                    fault_point("server.end.notified")
                    self._confirm_end(session.client_id)
                    return
                if event.WhichOneof("event") == "server_draining":
                    return
                await changed.wait()
        finally:
            session.streams -= 1
            if self.sessions.is_current(session):
                session.last_seen = engine.clock()
                if session.streams == 0:
                    engine.apply_in_background(Disconnected(session.client_id))
                    self._notice_disconnection(session)

    def _notice_disconnection(self, session: Session) -> None:
        """Reports a lost client, unless it leaves or is back in a moment: an orderly goodbye ends the stream, too."""
        wait = self._limits.disconnection_wait.total_seconds()
        asyncio.get_running_loop().call_later(wait, self._report_disconnection, session)
        self._engine.lost_clients.watch(session)

    def _report_disconnection(self, session: Session) -> None:
        engine, state = self._engine, self._engine.state
        is_back = session.streams > 0 or not self.sessions.is_current(session)
        if is_back or engine.draining or state.phase.is_final:
            return
        awaited_in = state.round if session.client_id in state.missing else None
        engine.event_log.disconnected(session, awaited_in=awaited_in, seconds_left=self.view.time_left())

    async def download(self, session: Session, round_number: int) -> AsyncGenerator[pb.DownloadPart, None]:
        """The client's own state for a round: its manifest, then its body in chunks."""
        async with self._downloads.one_more(session.client_id):
            check_download(round_number, self._engine.state)
            async with self._replies.turn(session.client_id):
                check_download(round_number, self._engine.state)  # the round may have closed meanwhile
                encoded = await self._engine.aggregator.download(
                    session.client_id, round_number, self.sessions.label_counts, self._engine.state.excluded
                )
            with self._engine.history.downloading(session.client_id, round_number):
                yield pb.DownloadPart(manifest=encoded.manifest)
                fault_point("server.download.sending")
                for piece in chunked(encoded.segments):
                    if not self.sessions.is_current(session):
                        raise RefusedError(pb.REFUSAL_REASON_STALE_SESSION, "this session was superseded or has ended")
                    yield pb.DownloadPart(chunk=pb.Chunk(data=piece))

    async def advance_sum(self, session: Session, request: pb.AdvanceSumRequest) -> pb.AdvanceSumResponse:
        """Takes a client's message of a step of the open round's secure sum, and answers what the step gave."""
        engine, state = self._engine, self._engine.state
        if engine.secure_sums is None:
            raise RefusedError(pb.REFUSAL_REASON_INVALID_REQUEST, "step: this run has no secure sums", field="step")
        is_open = not {Phase.COLLECTING, Phase.AGGREGATING}.isdisjoint({state.phase, state.held_phase})
        if not is_open or request.round != state.round:
            return pb.AdvanceSumResponse(over=pb.SumOver())
        if session.client_id not in state.selected:
            return pb.AdvanceSumResponse(excluded=pb.SumExcluded(reason="it was not selected for the round"))
        session.last_seen = engine.clock()
        async with self._sum_steps.one_more(session.client_id):
            return await engine.secure_sums.advance(
                session.client_id,
                request,
                engine.sum_context(),
                self._candidates,
            )

    def report_progress(self, session: Session, progress: pb.Progress) -> None:
        check_progress(progress)
        session.progress = progress
        session.last_seen = self._engine.clock()
        self._engine.status_changed.publish()

    async def report_metrics(self, session: Session, round_number: int, metrics: pb.RoundMetrics) -> None:
        exact = self.config.privacy.has_exact_counts
        check_report(round_number, metrics, session.data, self._engine.state, self._limits, exact_counts=exact)
        record = report_record(session, round_number, metrics)
        await self._engine.tasks.run_shielded(commit_report(self._engine, record))

    async def report_failure(self, session: Session, round_number: int, failure: pb.Failure) -> None:
        engine = self._engine
        check_reported_round(round_number, engine.state)
        if not failure.skips_round:
            engine.event_log.failed(session, round_number, failure.cause)
            return
        is_expected = round_number == engine.state.round and session.client_id in engine.state.silent
        await engine.tasks.run_shielded(engine.apply(Skipped(session.client_id, round_number)))
        if is_expected:
            engine.event_log.skipped(session, round_number, failure.cause)

    async def leave(self, session: Session, reason: str) -> None:
        await self._engine.tasks.run_shielded(self._commit_leave(session, reason))

    async def _commit_leave(self, session: Session, reason: str) -> None:
        engine = self._engine
        async with self.sessions.lock_of(session.client_id):
            if not self.sessions.is_current(session):  # a repeated call, or the client has joined again since
                return
            await engine.apply(Left(session.client_id), closed=session.closed_record())
            self.sessions.leave(session)
        engine.event_log.left(session, reason)
        engine.run_changed.publish()
        engine.status_changed.publish()

    # --- the end ---

    def _confirm_end(self, client_id: int) -> None:
        self._received_end.add(client_id)
        self._engine.status_changed.publish()

    async def ended(self, *, linger: timedelta) -> None:
        """Returns once the run is over and every member has received its end, or `linger` after it was over."""
        engine = self._engine
        while not engine.state.phase.is_final:
            await engine.run_changed.upcoming().wait()
        deadline = engine.clock() + linger.total_seconds()
        promptly = engine.clock() + self._limits.disconnection_wait.total_seconds()
        await self._end_received(until=min(promptly, deadline))
        if self.not_notified:
            engine.event_log.lingering(self.not_notified, max(0.0, deadline - engine.clock()))
        await self._end_received(until=deadline)

    async def save_end_received(self) -> None:
        """Makes durable who has received the end: the next server of a run that is over does not wait for them.

        Once, as the server stops, and not for each of a thousand clients. After a kill all of them are waited for.
        """
        if self._engine.state.phase.is_final:
            with suppress(StoreError):
                await self._engine.apply(EndReceived(frozenset(self._received_end)))

    @property
    def not_notified(self) -> frozenset[int]:
        """Members that are not known to have received the end of the run."""
        state = self._engine.state
        return state.members - state.informed - self._received_end

    async def _end_received(self, *, until: float) -> None:
        while self.not_notified and (left := until - self._engine.clock()) > 0:
            changed = self._engine.status_changed.upcoming()
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), timeout=left)

    # --- operators ---

    async def pause(self) -> None:
        await self._operate(PauseRequested())

    async def resume(self) -> None:
        await self._operate(ResumeRequested())

    async def stop(self, reason: str) -> None:
        shown = printable(reason, self._limits.text_characters)
        await self._operate(StopRequested(shown or "stopped by an operator"))

    # each returns whether anything had to be done

    async def drop(self, client_id: int, reason: str) -> bool:
        """Removes a client from the run; it may join again, and takes part from the next round."""
        self._check_client_of_running(client_id)
        if client_id not in self._engine.state.members and not self._is_in_session(client_id):
            return False
        await self._engine.tasks.run_shielded(self._remove(client_id, Left(client_id), "dropped", reason))
        return True

    async def block(self, client_id: int, reason: str) -> bool:
        """Removes a client from the run, with its upload of the open round, and refuses all its calls."""
        self._check_client_of_running(client_id)
        if client_id in self.blocked and not self._is_in_session(client_id):
            return False
        await self._engine.tasks.run_shielded(self._remove(client_id, Blocked(client_id), "blocked", reason))
        return True

    async def allow(self, client_id: int) -> bool:
        """Ends a block."""
        self._check_client_of_running(client_id)
        if client_id not in self.blocked:
            return False
        await self._operate(Allowed(client_id))
        self._engine.event_log.operated("allowed", client_id)
        return True

    def _is_in_session(self, client_id: int) -> bool:
        session = self.sessions.get(client_id)
        return session is not None and self.sessions.is_current(session)

    async def _remove(self, client_id: int, event: Event, what: str, reason: str) -> None:
        engine = self._engine
        async with self.sessions.lock_of(client_id):
            session = self.sessions.get(client_id)
            if session is None or not self.sessions.is_current(session):
                await engine.apply(event)
            else:
                await engine.apply(event, closed=session.closed_record())
                self.sessions.leave(session)
        engine.event_log.operated(what, client_id, reason)
        engine.run_changed.publish()  # ends the client's event streams
        engine.status_changed.publish()

    @property
    def blocked(self) -> frozenset[int]:
        return self._engine.state.blocked

    def _check_client_of_running(self, client_id: int) -> None:
        check_client_id(client_id, self.config)
        if self._engine.state.phase.is_final:
            raise RefusedError(pb.REFUSAL_REASON_RUN_ENDED, f"the run is over: {self._engine.state.reason}")

    async def _operate(self, event: Event) -> None:
        await self._engine.tasks.run_shielded(self._engine.apply(event))
