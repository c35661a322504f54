"""A run and its durable truth: events step the state machine, every step is kept before anyone hears of it.

Everything here happens on the event loop, but for going through all reports of a run, which the store's thread does at
its start and end. A change of the run is applied under one lock in the order decide - make durable - publish, so that
nobody is told of anything a crash could undo.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.run import RunConfig
from feddbp_common.fault_injection import fault_point
from feddbp_server.aggregation.aggregator import Aggregator, GlobalState
from feddbp_server.reporting.audit import Audit
from feddbp_server.reporting.event_log import EventLog
from feddbp_server.reporting.metrics_log import Report, Results
from feddbp_server.reporting.summary import summarise
from feddbp_server.run.client_events import changes_client_events
from feddbp_server.run.scheduling import BackgroundTasks, Broadcast, Timer
from feddbp_server.run.sessions import Sessions
from feddbp_server.run.snapshot import Progress, differs
from feddbp_server.run.state_machine import (
    Aggregated,
    CloseRound,
    Effect,
    Event,
    Phase,
    RoundOpened,
    RoundPolicy,
    RunEnded,
    RunFailed,
    RunState,
    Tick,
    step,
)
from feddbp_server.run.timing import AGGREGATION_BOUNDS, Durations, PhaseTimes
from feddbp_server.store import AggregateRecord, MonitoredStore, Store, StoreError, StoreWriter

log = logging.getLogger("feddbp.server")

_READ_ATTEMPTS: Final = 3
"""How often a round's contributions are read before the run fails because they cannot be."""


class RunEngine:
    """One run, from its first start on this state directory to its end."""

    def __init__(
        self,
        *,
        config: RunConfig,
        policy: RoundPolicy,
        store: StoreWriter,
        results: Results,
        audit: Audit,
        lease: timedelta,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.run_id = ""
        """Known after `start`: the configuration's fingerprint, and what tells two runs of it apart."""
        self.policy = policy
        self.state = RunState()
        self.sessions = Sessions(lease=lease)
        self._store = MonitoredStore(store, changed=self._storage_changed)
        self.aggregator = Aggregator(config, self._store)
        self.results = results
        self.run_changed = Broadcast()
        self.status_changed = Broadcast()
        self.event_log = EventLog(audit, changed=self.status_changed.publish)
        self.draining = False
        self.notified_of_end: set[int] = set()
        """Clients that know that the run is over."""
        self.phase_times = PhaseTimes(clock)
        self.aggregation_times = Durations(AGGREGATION_BOUNDS)
        self._clock = clock
        self._lock = asyncio.Lock()
        self._started_at = clock()
        """As if all the time for which the run was served had been without a break."""
        self._deadline = Timer(lambda: self._tasks.spawn(self._apply_quietly(Tick())), clock)
        self._tasks = BackgroundTasks()

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Takes up the run where the store left it."""
        proposed = f"{self.config.fingerprint}-{secrets.token_hex(4)}"
        self.run_id = await self._store.run(lambda store: store.open_run(proposed, self.config.canonical_json()))
        fault_point("server.start.opened")
        if self.run_id == proposed:
            self.results.restore([])
        else:
            await self._restore()
        if self.state.phase.is_final and not self.results.has_summary:
            await self._write_summary()
        self.phase_times.enter(self.state.phase)
        await self._apply(Tick())
        self._deadline.set(self.state.deadline)  # also if nothing follows from the start itself

    async def _restore(self) -> None:
        await self._store.run(lambda store: self.results.restore(_reports_in(store)))
        text, clients = await self._store.run(lambda store: (store.progress(), store.clients()))
        self.sessions.restore(clients, self._clock())
        await self.aggregator.restore()
        if text is None:
            return
        progress = Progress.from_json(text)
        self._started_at = self._clock() - progress.seconds
        number = progress.state.round
        uploads = await self._store.run(lambda store: store.uploads(number))
        timed = progress.state.phase in (Phase.COLLECTING, Phase.EVALUATING) and self.policy.deadline is not None
        self.state = replace(
            progress.state,
            uploaded=frozenset(record.client_id for record in uploads),
            reported=self.results.reporters_of(number),
            deadline=self._clock() + self.policy.deadline.total_seconds() if timed and self.policy.deadline else None,
        )
        if self.state.phase.is_final:
            log.warning("the run in this state directory is over; another one needs another --state-dir")
        else:
            log.info("resuming the run in phase %s, round %d", self.state.phase.value, number)

    async def drain(self) -> None:
        """Tells followers that the server goes away, and finishes what is being closed."""
        self.draining = True
        self.run_changed.publish()
        self.status_changed.publish()  # whoever watches would keep a server that is to go for the whole grace
        self._deadline.set(None)
        await self._store.give_up()
        await self._tasks.finish()

    async def ended(self, *, linger: timedelta) -> None:
        """Returns once the run is over and every member was told, or `linger` after it was over."""
        while not self.state.phase.is_final:
            await self.run_changed.upcoming().wait()
        give_up = self._clock() + linger.total_seconds()
        while not self.state.members <= self.notified_of_end and self._clock() < give_up:
            changed = self.status_changed.upcoming()
            try:
                await asyncio.wait_for(changed.wait(), timeout=max(0.0, give_up - self._clock()))
            except TimeoutError:
                break

    def time_left(self) -> float | None:
        return None if self.state.deadline is None else max(0.0, self.state.deadline - self._clock())

    def seconds_since(self, moment: float) -> float:
        return self._clock() - moment

    # --- changes ------------------------------------------------------------------------------------------------

    async def _apply(self, event: Event, learnt: GlobalState | None = None) -> None:
        """Steps the run. `learnt`, what the server knows after a round, becomes durable together with the step."""
        async with self._lock:
            before = self.state
            state, effects = step(before, event, self.policy, self._clock())
            if learnt is not None and not before.phase.is_final:  # a run that was stopped meanwhile stays as it is
                aggregate = learnt.record(completed_rounds=state.round)
                progress = self._progress(state)
                fault_point("server.close.aggregated")
                await self._store.run(lambda store: _close_in_store(store, aggregate, progress))
                fault_point("server.close.committed")
                self.aggregator.adopt(learnt)
            elif differs(before, state):
                progress = self._progress(state)
                await self._store.run(lambda store: store.save_progress(progress))
            self.state = state
        if state == before:
            return
        self.event_log.phase(before.phase, state.phase)
        self.phase_times.enter(state.phase)
        self._deadline.set(None if self.draining else state.deadline)
        for effect in effects:
            self._carry_out(effect)
        if changes_client_events(before, state):
            self.run_changed.publish()
        self.status_changed.publish()

    def _progress(self, state: RunState) -> str:
        return Progress(state=state, seconds=self._clock() - self._started_at).to_json()

    async def _apply_until_durable(self, event: Event, learnt: GlobalState | None = None) -> None:
        """For what nobody would send again: waits until it can be made durable, or the server goes away."""
        while True:
            try:
                await self._apply(event, learnt)
                return
            except StoreError:
                if self.draining:
                    raise
            await self._store.wait_until_writable()

    async def _apply_quietly(self, event: Event) -> None:
        """For events nobody waits for: a store that is closing must not turn them into a traceback."""
        try:
            await self._apply_until_durable(event)
        except StoreError as error:
            log.error("could not take note of %s: %s", event, error)
        except Exception:
            log.exception("could not take note of %s", event)

    @property
    def storage_trouble(self) -> str:
        """Why nothing can be kept at the moment; empty while all is well."""
        return self._store.trouble

    def _storage_changed(self) -> None:
        self.event_log.storage(self.storage_trouble)
        self.run_changed.publish()
        self.status_changed.publish()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case RoundOpened():
                for client in self.sessions.all():
                    client.progress = pb.Progress()
            case CloseRound(number):
                self._tasks.spawn(self._close_round(number))
            case RunEnded():
                fault_point("server.end.committed")
                self._tasks.spawn(self._write_summary())
        self.event_log.effect(effect)

    async def _close_round(self, number: int) -> None:
        started = time.perf_counter()
        fault_point("server.close.begun")
        try:
            learnt = await self._aggregated(number)
            seconds = time.perf_counter() - started
            self.aggregation_times.add(seconds)
            log.info("round %d is aggregated, after %.0f ms", number, 1000 * seconds)
            await self._apply_until_durable(Aggregated(number), learnt)
        except Exception as error:
            if self.draining and isinstance(error, StoreError):
                log.error("round %d could not be closed: %s; the next server will", number, error)
                return
            log.exception("round %d could not be closed", number)
            await self._apply_quietly(RunFailed(f"round {number} could not be closed: {error}"))
            return
        fault_point("server.close.announced")
        # after everyone was told: the next round should not wait for a clean-up
        with suppress(StoreError):  # the next round's clean-up takes this one's with it
            await self._store.tidy(lambda store: store.forget_superseded_uploads(number + 1))

    async def _aggregated(self, number: int) -> GlobalState:
        """What is learnt from a round. A disk may have a bad moment, but a damaged database stays one."""
        for _ in range(_READ_ATTEMPTS - 1):
            with suppress(StoreError):
                return await self.aggregator.close_round(number, self._label_counts)
            await self._store.wait_until_writable()
        return await self.aggregator.close_round(number, self._label_counts)

    def _label_counts(self, client_id: int) -> Sequence[int]:
        client = self.sessions.get(client_id)
        assert client is not None  # whoever uploaded has joined
        return client.data.label_counts

    async def _write_summary(self) -> None:
        try:
            await self._write_results()
        except (OSError, StoreError) as error:
            log.error("the summary could not be written: %s; the next start of the server writes it", error)

    async def _write_results(self) -> None:
        summarised = functools.partial(
            summarise,
            config=self.config,
            run_id=self.run_id,
            clients=self.sessions.all(),
            outcome=self.state.phase,
            reason=self.state.reason,
            completed_rounds=self.state.round,
            seconds=self._clock() - self._started_at,
            prototypes_sha256=self.aggregator.sha256,
        )
        # in the store's thread, where the reports are: there may be a million of them
        summary = await self._store.run(lambda store: summarised(reports=_reports_in(store)))
        await self._store.run(lambda store: self.results.complete(_reports_in(store)))
        self.results.write_summary(summary)
        last = summary["accuracy"]["last"]
        told = f"accuracy {100 * last['weighted']:.1f} % after {last['round']} rounds; " if last else ""
        log.info("%sthe summary is %s", told, self.results.summary_path)
        fault_point("server.end.summarised")


def _reports_in(store: Store) -> Iterator[Report]:
    return map(Report.from_record, store.reports())


def _close_in_store(store: Store, aggregate: AggregateRecord, progress: str) -> None:
    store.save_aggregate(aggregate)
    store.save_progress(progress)
