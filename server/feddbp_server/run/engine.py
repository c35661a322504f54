"""The run engine: one lock, under which every event is decided, made durable and published, in this order.

All of it happens on the event loop, except reading every report of a run, which the store's thread does at the start
and at the end.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.run import RunConfig
from feddbp_common.fault_injection import fault_point
from feddbp_common.secure_sums.digests import SumContext
from feddbp_server.aggregation.aggregator import Aggregator, GlobalState
from feddbp_server.aggregation.sums import Opening, SumAbortedError, open_plain_sum
from feddbp_server.reporting.event_log import EventLog
from feddbp_server.reporting.history import RunHistory
from feddbp_server.reporting.metrics_log import MetricsLog, reports_in
from feddbp_server.reporting.records import RunRecords
from feddbp_server.reporting.round_lines import RoundLines
from feddbp_server.reporting.summary import RunOutcome
from feddbp_server.run.admission.limits import Limits
from feddbp_server.run.admission.refusals import RefusedError
from feddbp_server.run.client_events import run_ended
from feddbp_server.run.concurrency import BackgroundTasks, Broadcast
from feddbp_server.run.durations import PhaseTimes
from feddbp_server.run.extension import may_be_extended, open_run
from feddbp_server.run.final_results import FinalResults
from feddbp_server.run.lost_clients import LostClients
from feddbp_server.run.participants import Waiting, sole_participant
from feddbp_server.run.round_closing import RoundCloser
from feddbp_server.run.sessions import Session, Sessions
from feddbp_server.run.snapshot import StoredState, withdrawn
from feddbp_server.run.state_machine.events import (
    CloseRound,
    Effect,
    Event,
    Joined,
    RoundOpened,
    RunEnded,
    RunFailed,
    Tick,
)
from feddbp_server.run.state_machine.state import Phase, RoundPolicy, RunState
from feddbp_server.run.state_machine.transitions import step
from feddbp_server.store import ClientRecord, MonitoredStore, Store, StoreError, StoreWriter

if TYPE_CHECKING:
    from feddbp_server.run.secure_sums import SecureSums

log = logging.getLogger("feddbp.server")


class RunEngine:
    """Owns the state of one run: applies events to it, times and closes its rounds, and restores it."""

    def __init__(
        self,
        *,
        config: RunConfig,
        policy: RoundPolicy,
        store: StoreWriter,
        records: RunRecords,
        lease: timedelta,
        limits: Limits,
        authority: bytes = b"",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`authority` is the certificate of the clients' certificate authority, for a run with secure sums."""
        self.config = config
        self.run_id = ""
        """Set by `start`: the configuration's fingerprint and a suffix that tells two runs of it apart."""
        self.policy = policy
        self.clock = clock
        self.state = RunState()
        self.draining = False
        self.tasks = BackgroundTasks()
        self.run_changed = Broadcast()
        """Something a client receives over its event stream."""
        self.status_changed = Broadcast()
        """Anything the status shows."""
        self.records = records
        self.sessions = Sessions(lease=lease)
        self.store = MonitoredStore(store, changed=self._storage_changed)
        self.secure_sums = self._make_secure_sums(authority, limits) if config.privacy.secure_sums else None
        self.aggregator = Aggregator(
            config,
            self.store,
            cache_bytes=limits.cached_upload_bytes,
            open_sum=open_plain_sum if self.secure_sums is None else self._open_secure_sum,
        )
        self.event_log = EventLog(
            records.audit,
            rounds=RoundLines(
                rounds=policy.rounds,
                clients=config.clients,
                clock=clock,
                finetune_rounds=config.finetune_rounds if config.exchange == "on" else 0,
                finetune_state=config.finetune_state,
            ),
            names=self.sessions.name,
            limits=limits,
            changed=self.status_changed.publish,
            command=records.command,
            clock=clock,
        )
        self.closer = RoundCloser(
            self.aggregator,
            self.store,
            sessions=self.sessions,
            records=records,
            event_log=self.event_log,
            closes_without_result=self.secure_sums is not None,
        )
        self.lost_clients = LostClients(self.sessions, after=limits.lost_after, clock=clock, report=self._report_lost)
        self.phase_times = PhaseTimes(clock)
        self.final_results = FinalResults(
            self._outcome, self.store, records=records, aggregator=self.aggregator, tasks=self.tasks
        )
        self._stored = StoredState(self.store, clock)
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None

    def _make_secure_sums(self, authority: bytes, limits: Limits) -> SecureSums:
        from feddbp_server.run.secure_sums import SecureSums  # cryptography is slow to import

        return SecureSums(
            self.store,
            authority=authority,
            least=self.config.least_summed,
            limits=limits,
            clock=self.clock,
            stopping=lambda: self.draining or self.state.phase.is_final,
        )

    @property
    def metrics_log(self) -> MetricsLog:
        return self.records.metrics_log

    @property
    def history(self) -> RunHistory:
        return self.records.history

    def check_allowed(self, client_id: int) -> None:
        """Refuses a client that an operator has blocked."""
        if client_id in self.state.blocked:
            raise RefusedError(pb.REFUSAL_REASON_BLOCKED, f"an operator has blocked client {client_id}")

    # --- start ---

    async def start(self, *, reopen: bool = False, options_json: str = "{}") -> None:
        """Begins a run, or resumes or extends the one in the store, which also keeps the server's options."""
        proposed = f"{self.config.fingerprint}-{secrets.token_hex(4)}"

        def open_in_store(store: Store) -> str:
            run_id = open_run(store, self.config, proposed=proposed, reopen=reopen)
            store.save_options(options_json)
            return run_id

        self.run_id = await self.store.run(open_in_store)
        self.records.command.run_id = self.run_id
        fault_point("server.start.opened")
        if self.run_id == proposed:
            self.records.forget()
        else:
            await self._restore()
        if not self.state.phase.is_final:
            self.metrics_log.remove_summary()  # of the run before it was extended
        elif not self.metrics_log.has_summary:
            await self.final_results.write()
        self.phase_times.enter(self.state.phase)
        await self.apply(Tick())
        self._set_timer(self.state.deadline)  # of a restored round; the event may have changed nothing

    async def _restore(self) -> None:
        await self.store.run(lambda store: self.metrics_log.restore(reports_in(store)))
        clients = await self.store.run(lambda store: store.clients())
        self.sessions.restore(clients, self.clock())
        await self.aggregator.restore()
        state = await self._stored.load()
        if state is None:
            return
        self.state = replace(
            state,
            reported=self.metrics_log.reporters_of(state.round),
            deadline=state.new_deadline(self.policy, self.clock()),
            joined=frozenset(record.client_id for record in clients),
            last_join=self.clock(),
        )
        self.event_log.resumed(self.state, extendable=may_be_extended(self.state, self.config.rounds, self.config))
        for session in self.sessions.all():
            if session.client_id in self.state.members and self.sessions.is_current(session):
                self.lost_clients.watch(session)
        if not self.state.phase.is_final:
            self.history.opened(self.state.round)

    def _report_lost(self, session: Session, seconds: float) -> None:
        if not (self.draining or self.state.phase.is_final):
            self.event_log.lost(session, seconds)

    # --- events ---

    async def apply(
        self, event: Event, aggregate: GlobalState | None = None, *, closed: ClientRecord | None = None
    ) -> None:
        """Steps the run: decides, makes durable, publishes.

        `aggregate`, or the `closed` session of a client, becomes durable together with the step.
        """
        async with self._lock:
            before = self.state
            state, effects = step(before, event, self.policy, self.clock())
            if not self._is_durable_join(event, before, state):
                await self._make_durable(before, state, aggregate, closed)
            self.state = state
        if state != before:
            self._publish(before, state, effects)

    def _is_durable_join(self, event: Event, before: RunState, state: RunState) -> bool:
        """Whether nothing but a member was added, which is stored since its join: a snapshot would have all members."""
        if not isinstance(event, Joined) or replace(before, members=state.members).durable != state.durable:
            return False
        return self._stored.has_join(event.client)

    async def save_join(self, record: ClientRecord) -> None:
        """Makes a join durable, before `Joined` is applied."""
        await self._stored.save_join(record)

    async def apply_until_durable(self, event: Event, aggregate: GlobalState | None = None) -> None:
        """Applies an event that no caller would repeat: retries until the store is writable or the server drains."""
        while True:
            try:
                await self.apply(event, aggregate)
                return
            except StoreError:
                if self.draining:
                    raise
            await self.store.wait_until_writable()

    def apply_in_background(self, event: Event) -> None:
        """Applies an event without a caller to fail: errors are logged."""
        self.tasks.begin(self._apply_or_log(event))

    async def _apply_or_log(self, event: Event) -> None:
        try:
            await self.apply_until_durable(event)
        except StoreError as error:  # the store is closing: no traceback
            log.error("could not apply %s: %s", event, error)
        except Exception:
            log.exception("could not apply %s", event)

    async def _make_durable(
        self, before: RunState, state: RunState, aggregate: GlobalState | None, closed: ClientRecord | None
    ) -> None:
        if aggregate is not None and not before.phase.is_final:  # a run stopped during aggregation keeps its state
            fault_point("server.close.aggregated")
            await self._stored.close_round(before, state, aggregate.record(completed_rounds=state.round))
            fault_point("server.close.committed")
            self.aggregator.adopt(aggregate)
        elif state.durable != before.durable:
            await self._stored.save(before, state, closed)
            for client_id in withdrawn(before, state):
                self.aggregator.forget(before.round, client_id)
        elif closed is not None:
            await self.store.run(lambda store: store.save_client(closed))

    def _publish(self, before: RunState, state: RunState, effects: Sequence[Effect]) -> None:
        if state.phase is not before.phase:
            self.event_log.phase(before.phase, state.phase)
            self.phase_times.enter(state.phase)
        if state.deadline != before.deadline:
            self._set_timer(state.deadline)
        for effect in effects:
            self._carry_out(effect)
        if state.phase is Phase.WAITING and state.arrived != before.arrived:
            self.event_log.waiting(lambda: Waiting.of(state, self.policy, self.clock()))
        if (state.phase, state.members) != (before.phase, before.members):
            self.event_log.alone(sole_participant(state, self.policy))
        if self.secure_sums is not None and (state.selected, state.skipped) != (before.selected, before.skipped):
            self.secure_sums.wake()
        if state.client_facing != before.client_facing:
            self.run_changed.publish()
        self.status_changed.publish()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case RoundOpened(number):
                self.history.opened(number)
                for session in self.sessions.all():
                    session.progress = pb.Progress()
            case CloseRound(number):
                self.tasks.begin(self._close_round(number))
            case RunEnded():
                fault_point("server.end.committed")
                if self.secure_sums is not None:
                    self.secure_sums.wake()
                self.tasks.begin(self.final_results.write())
                self.history.ended(pb.RunEvent(run_ended=run_ended(self.state)))
        self.event_log.effect(effect)

    def _set_timer(self, deadline: float | None) -> None:
        """Applies a `Tick` at the deadline: a deadline needs no traffic to pass."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline is not None and not self.draining:
            delay = max(0.0, deadline - self.clock())
            self._timer = asyncio.get_running_loop().call_later(delay, self.apply_in_background, Tick())

    # --- closing a round ---

    async def _close_round(self, number: int) -> None:
        name = self.event_log.rounds.name(number)
        fault_point("server.close.begun")
        try:
            aggregate, seconds = await self.closer.aggregate(number)
            event = self.closer.report(number, aggregate, uploaded=self.state.uploaded, seconds=seconds)
            await self.apply_until_durable(event, aggregate)
        except SumAbortedError as error:
            log.info("%s is not closed: %s", name, error)
            return
        except Exception as error:
            if self.draining and isinstance(error, StoreError):
                log.error("%s could not be closed: %s; the next server will", name, error)
                return
            log.exception("%s could not be closed", name)
            await self._apply_or_log(RunFailed(f"{name} could not be closed: {error}"))
            return
        fault_point("server.close.announced")
        if self.state.round <= number:  # the run was stopped meanwhile: --reopen goes on with the round as it is
            return
        if self.secure_sums is not None:
            self.secure_sums.close(number)
        snapshots, prototypes = self.records.snapshots, aggregate.payload.prototypes
        if snapshots is not None and prototypes is not None:
            self.tasks.begin(asyncio.to_thread(snapshots.save, number + 1, prototypes))

    def sum_context(self) -> SumContext:
        """What the sum of the open round is bound to."""
        return SumContext(
            run_id=self.run_id,
            round=self.state.round,
            config_sha256=self.config.sum_sha256,
            state_sha256=self.aggregator.reply_sha256,
        )

    async def _open_secure_sum(self, number: int, uploaded: frozenset[int]) -> Opening:
        assert self.secure_sums is not None
        assert number == self.state.round  # which no event changes while a round is closed
        return await self.secure_sums.open(self.sum_context(), uploaded)

    # --- the end ---

    def _outcome(self) -> RunOutcome:
        return RunOutcome(
            config=self.config,
            run_id=self.run_id,
            sessions=self.sessions.all(),
            phase=self.state.phase,
            reason=self.state.reason,
            completed_rounds=self.state.round,
            seconds=self._stored.seconds_served,
            prototypes_sha256=self.aggregator.sha256,
            began_with=self.state.began_with,
        )

    async def drain(self) -> None:
        """Ends event streams with a notice that the server stops, and finishes a round that is being closed."""
        self.draining = True
        self.history.end_streams()
        self.run_changed.publish()
        self.status_changed.publish()  # an open status stream would hold up the stop for the whole grace period
        self._set_timer(None)
        if self.secure_sums is not None:
            self.secure_sums.wake()
        await self.store.stop_watching()
        await self.tasks.settled()

    # --- the store ---

    @property
    def storage_trouble(self) -> str:
        """Why the store is not writable; empty while it is."""
        return self.store.trouble

    def _storage_changed(self) -> None:
        self.event_log.storage(self.storage_trouble)
        self.run_changed.publish()
        self.status_changed.publish()
