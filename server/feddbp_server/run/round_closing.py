"""Closes a round: aggregates its uploads and reports the result; the engine makes both durable."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import Final

from feddbp_server.aggregation.aggregator import Aggregator, GlobalState
from feddbp_server.reporting.event_log import EventLog
from feddbp_server.reporting.records import RunRecords
from feddbp_server.reporting.round_lines import ClosedRound
from feddbp_server.run.durations import AGGREGATION_BOUNDS, Durations
from feddbp_server.run.sessions import Sessions
from feddbp_server.run.state_machine.events import Aggregated
from feddbp_server.store import MonitoredStore, StoreError

log = logging.getLogger("feddbp.server")

_READ_ATTEMPTS: Final = 3
"""Times a round's uploads are read before the run fails because they cannot be."""


class RoundCloser:
    """Aggregates a round, and writes what is to be known of it to log, history and metrics."""

    def __init__(
        self,
        aggregator: Aggregator,
        store: MonitoredStore,
        *,
        sessions: Sessions,
        records: RunRecords,
        event_log: EventLog,
        closes_without_result: bool,
    ) -> None:
        """With `closes_without_result` a round that leaves no usable state is closed without a result."""
        self.times = Durations(AGGREGATION_BOUNDS)
        self._aggregator = aggregator
        self._store = store
        self._sessions = sessions
        self._records = records
        self._event_log = event_log
        self._closes_without_result = closes_without_result

    async def aggregate(self, number: int) -> tuple[GlobalState, float]:
        """The global state after a round, and the seconds that it took."""
        started = time.perf_counter()
        aggregate = await self._aggregated(number)
        seconds = time.perf_counter() - started
        self.times.add(seconds)
        log.debug("%s is aggregated, after %.0f ms", self._event_log.rounds.name(number), 1000 * seconds)
        return aggregate, seconds

    async def _aggregated(self, number: int) -> GlobalState:
        """Retries a few times, since a read may fail once; a damaged database fails every time."""
        for _ in range(_READ_ATTEMPTS - 1):
            with suppress(StoreError):
                return await self._aggregator.close_round(number, self._sessions.label_counts)
            await self._store.wait_until_writable()
        return await self._aggregator.close_round(number, self._sessions.label_counts)

    def report(self, number: int, aggregate: GlobalState, *, uploaded: frozenset[int], seconds: float) -> Aggregated:
        """Reports a round that is aggregated; returns it as an event, to be made durable with its aggregate."""
        metrics_log, screening = self._records.metrics_log, aggregate.screening
        closed = ClosedRound(number=number, uploaded=uploaded, accuracy=metrics_log.accuracy(completed_rounds=number))
        missing = self._event_log.rounds.missing(closed)
        self._event_log.closed(closed)
        self._event_log.screened(number, screening)
        self._records.history.closed(number, aggregation_seconds=seconds, missing=missing)
        return Aggregated(
            number,
            frozenset(screening.left_out),
            metrics_log.decisive_accuracy(),
            without_result=self._closes_without_result and bool(screening.unusable),
        )
