"""Streams for operators: `WatchRun`, the events of a run, and `GetPrototypes` and `GetClientPrototypes`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from itertools import chain
from typing import Final

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.run import run_to_proto
from feddbp_common.version import VERSION
from feddbp_common.wire import Payload, chunked, encode
from feddbp_server.reporting.history import RoundRecord, Watcher, joined_event, reported_event
from feddbp_server.reporting.metrics_log import Report
from feddbp_server.run.admission.limits import Limits
from feddbp_server.run.admission.refusals import RefusedError
from feddbp_server.run.client_events import run_ended
from feddbp_server.run.engine import RunEngine
from feddbp_server.store import Store

_PAGE_BYTES: Final = 128 << 10
"""Of events in a message; it may exceed this by one event."""
_PAGE_REPORTS: Final = 2000
"""Reports read from the store at a time: its thread must not be busy with a long history while clients upload."""


class RunEventStreams:
    """Sends the history of a run, and then its events as they happen."""

    def __init__(self, engine: RunEngine, limits: Limits) -> None:
        self._engine = engine
        self._limits = limits

    async def watch(self, request: pb.WatchRunRequest) -> AsyncGenerator[pb.RunEvents, None]:
        history = self._engine.history
        if history.watchers >= self._limits.status_watchers:
            raise RefusedError(pb.REFUSAL_REASON_BUSY, f"the run is watched {history.watchers} times already")
        with history.watching(room=self._limits.watched_events) as watcher:
            is_over = self._engine.state.phase.is_final
            sent = _Sent(from_round=request.from_round)
            async with aclosing(self._history(sent)) as pages:
                async for page in pages:
                    yield page
            if is_over:
                yield pb.RunEvents(events=[pb.RunEvent(run_ended=run_ended(self._engine.state))])
            if not (is_over or request.history_only or self._engine.draining):
                async with aclosing(self._live(watcher, sent)) as pages:
                    async for page in pages:
                        yield page

    async def _history(self, sent: _Sent) -> AsyncGenerator[pb.RunEvents, None]:
        engine = self._engine
        joined = map(joined_event, engine.sessions.all())
        for page in _pages(chain([_started(engine)], joined)):
            yield page
        rounds = await asyncio.to_thread(engine.history.rounds)
        number: int | None = sent.from_round
        while number is not None:
            reports, number = await self._read_reports(number)
            following = engine.config.rounds + 1 if number is None else number
            due = [record for record in rounds if sent.from_round <= record.round < following]
            for page in _pages(sent.fresh(_interleaved(reports, due))):
                yield page
        yield pb.RunEvents(events=[pb.RunEvent(history_complete=pb.HistoryComplete())])

    async def _read_reports(self, first: int) -> tuple[list[Report], int | None]:
        """Whole rounds of reports, and the round to continue with; None after the last."""

        def read(store: Store) -> tuple[list[Report], int | None]:
            found: list[Report] = []
            for record in store.reports(first):
                if len(found) >= _PAGE_REPORTS and record.round > found[-1].round:
                    return found, record.round
                found.append(Report.from_record(record))
            return found, None

        return await self._engine.store.run(read)

    async def _live(self, watcher: Watcher, sent: _Sent) -> AsyncGenerator[pb.RunEvents, None]:
        is_open = True
        while is_open:
            waiting = [await watcher.queue.get()]
            while not watcher.queue.empty():
                waiting.append(watcher.queue.get_nowait())
            is_open = None not in waiting
            for page in _pages(sent.fresh(event for event in waiting if event is not None)):
                yield page
        if watcher.too_slow:
            raise RefusedError(pb.REFUSAL_REASON_BUSY, "events were not read in time; watch again")

    # --- prototypes ---

    async def prototypes(self, request: pb.GetPrototypesRequest) -> AsyncGenerator[pb.PrototypesPart, None]:
        snapshots = self._engine.records.snapshots
        if snapshots is None:
            raise _not_shared()
        for number in await asyncio.to_thread(snapshots.rounds):
            found = await asyncio.to_thread(snapshots.read, number) if number >= request.from_round else None
            if found is None:
                continue
            encoded = encode(Payload(prototypes=found))
            yield pb.PrototypesPart(header=pb.PrototypesHeader(round=number, manifest=encoded.manifest))
            for piece in chunked(encoded.segments):
                yield pb.PrototypesPart(chunk=pb.Chunk(data=piece))

    async def client_prototypes(
        self, request: pb.GetClientPrototypesRequest
    ) -> AsyncGenerator[pb.ClientPrototype, None]:
        if self._engine.records.snapshots is None:
            raise _not_shared()
        if self._engine.sessions.get(request.client_id) is None:
            raise RefusedError(
                pb.REFUSAL_REASON_UNKNOWN_CLIENT, f"client {request.client_id} never joined", field="client_id"
            )
        compared = await self._engine.aggregator.compared(request.client_id)
        if compared is None:
            return
        for row in range(len(compared)):
            yield pb.ClientPrototype(
                class_id=int(compared.class_ids[row]),
                samples=int(compared.samples[row]),
                distance=float(compared.distances[row]),
                cosine=float(compared.cosines[row]),
                channels=compared.kept.shape[1],
                kept_channels=compared.kept[row].nonzero()[0].tolist(),
            )


class _Sent:
    """What a stream has sent of the newest rounds: events that happen during the history are in both."""

    def __init__(self, *, from_round: int) -> None:
        self.from_round = from_round
        self._reports: set[tuple[int, int]] = set()
        self._newest = 0
        self._closed = -1

    def fresh(self, events: Iterable[pb.RunEvent]) -> Iterator[pb.RunEvent]:
        for event in events:
            if event.HasField("client_reported") and not self._is_new_report(event.client_reported):
                continue
            if event.HasField("round_closed"):
                if event.round_closed.round <= self._closed:
                    continue
                self._closed = event.round_closed.round
            yield event

    def _is_new_report(self, report: pb.ClientReported) -> bool:
        key = report.round, report.client_id
        if key in self._reports:
            return False
        if report.round > self._newest:  # a report on an earlier round may still arrive, but on the one before only
            self._newest = report.round
            self._reports = {known for known in self._reports if known[0] >= report.round - 1}
        self._reports.add(key)
        return True


def _started(engine: RunEngine) -> pb.RunEvent:
    started = pb.RunStarted(
        run_id=engine.run_id,
        config=run_to_proto(engine.config),
        software_version=VERSION,
        shares_prototypes=engine.records.snapshots is not None,
    )
    return pb.RunEvent(run_started=started)


def _interleaved(reports: list[Report], rounds: list[RoundRecord]) -> Iterator[pb.RunEvent]:
    """Each round's reports, then its end."""
    waiting = iter(rounds)
    closing = next(waiting, None)
    for report in reports:
        while closing is not None and closing.round < report.round:
            yield closing.as_event()
            closing = next(waiting, None)
        yield reported_event(report)
    while closing is not None:
        yield closing.as_event()
        closing = next(waiting, None)


def _pages(events: Iterable[pb.RunEvent]) -> Iterator[pb.RunEvents]:
    page, size = pb.RunEvents(), 0
    for event in events:
        page.events.append(event)
        size += event.ByteSize()
        if size >= _PAGE_BYTES:
            yield page
            page, size = pb.RunEvents(), 0
    if page.events:
        yield page


def _not_shared() -> RefusedError:
    return RefusedError(
        pb.REFUSAL_REASON_NOT_AUTHORISED,
        "this run does not share prototypes with operators; the server's --share-prototypes-with-operators allows it",
    )
