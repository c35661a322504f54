"""What the server writes of a run that is over: its summary, and how far clients differ from the global prototypes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from feddbp_server.aggregation.aggregator import Aggregator
from feddbp_server.reporting.records import RunRecords
from feddbp_server.reporting.summary import RunOutcome, write_summary
from feddbp_server.run.concurrency import BackgroundTasks
from feddbp_server.store import Jobs, StoreError

log = logging.getLogger("feddbp.server")


class FinalResults:
    """Writes the results at the end of a run, and the summary again with reports that come later."""

    def __init__(
        self,
        outcome: Callable[[], RunOutcome],
        store: Jobs,
        *,
        records: RunRecords,
        aggregator: Aggregator,
        tasks: BackgroundTasks,
    ) -> None:
        self._outcome = outcome
        self._store = store
        self._records = records
        self._aggregator = aggregator
        self._tasks = tasks
        self._lock = asyncio.Lock()
        self._summary_is_due = False
        """A report has come after the end, and waits for a summary with it."""

    async def write(self) -> None:
        await self._write_summary()
        await self._save_client_prototypes()

    def update_summary(self) -> None:
        """Writes the summary again, with a report that came after the end and others that come meanwhile."""
        if not self._summary_is_due:
            self._summary_is_due = True
            self._tasks.begin(self._write_summary())

    async def _write_summary(self) -> None:
        async with self._lock:
            self._summary_is_due = False
            await write_summary(self._outcome(), self._store, self._records.metrics_log)

    async def _save_client_prototypes(self) -> None:
        snapshots = self._records.snapshots
        if snapshots is None:
            return
        clients = [session.client_id for session in self._outcome().sessions]
        try:
            compared = [await self._aggregator.compared(client_id) for client_id in clients]
        except StoreError as error:
            log.error("the prototypes of clients are not compared with the global ones: %s", error)
            return
        await asyncio.to_thread(snapshots.save_clients, [rows for rows in compared if rows is not None])
