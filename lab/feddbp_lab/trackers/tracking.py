"""Follows a run and tells its sinks: settings at the start, values of every round, and how it ended."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.identity import visible
from feddbp_common.config.nested import dotted
from feddbp_common.config.run import run_from_proto
from feddbp_common.errors import FedDBPError
from feddbp_common.printable import printable
from feddbp_common.rpc.credentials import ClientCredentials
from feddbp_lab.control_client import RequestRefusedError
from feddbp_lab.run_events import watch_run
from feddbp_lab.trackers.sinks import Sink, TrackedRun, sink_for
from feddbp_lab.trackers.values import RoundValues

log = logging.getLogger("feddbp.track")

_ROOM: Final = 10_000
"""Calls that wait for a slow tracker; those of a tracker that does not keep up even then are dropped."""
_CLOSING_SECONDS: Final = 30.0
"""How long a tracker may take for what is left when the run has ended."""
_RETRY_SECONDS: Final = 1.0

Warn = Callable[[str], None]


class SinkThread:
    """Calls a sink in a thread of its own: a slow or failing tracker warns once and does not disturb the run."""

    def __init__(self, sink: Sink, name: str, warn: Warn) -> None:
        self._sink, self._name, self._warn = sink, name, warn
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue(_ROOM)
        self._failed = False
        # a daemon: a tracker that hangs must not keep the process alive
        self._thread = threading.Thread(target=self._work, name=f"track-{name}", daemon=True)
        self._thread.start()

    def begin(self, run: TrackedRun) -> None:
        self._call(lambda: self._sink.begin(run))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._call(lambda: self._sink.log(step, values))

    def end(self, *, finished: bool, reason: str) -> None:
        self._call(lambda: self._sink.end(finished=finished, reason=reason))

    def close(self) -> None:
        """Waits, within bounds, until everything is written."""
        self._call(None)
        self._thread.join(_CLOSING_SECONDS)
        if self._thread.is_alive():
            self._fail(f"still busy after {_CLOSING_SECONDS:g} s")

    def _call(self, call: Callable[[], None] | None) -> None:
        if not self._failed:
            try:
                self._calls.put_nowait(call)
            except queue.Full:
                self._fail("does not keep up with the run")

    def _work(self) -> None:
        while (call := self._calls.get()) is not None and not self._failed:
            try:
                call()
            except Exception as error:  # whatever a library raises, the run continues
                self._fail(f"{type(error).__name__}: {error}")
                return

    def _fail(self, why: str) -> None:
        if not self._failed:
            self._failed = True
            self._warn(f"{self._name} is not tracked any more: {printable(why)}")


class Tracker:
    """Feeds the events of one run to its sinks."""

    def __init__(self, specs: Sequence[str], *, warn: Warn = log.warning) -> None:
        self._sinks = [SinkThread(sink_for(spec), spec.partition(":")[0], warn) for spec in specs]
        self._values = RoundValues()
        self._has_begun = False
        self._has_ended = False

    @property
    def has_begun(self) -> bool:
        return self._has_begun

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    @property
    def next_round(self) -> int:
        """The first round of which something may be missing, for a stream that is opened again."""
        return self._values.open_round

    def handle(self, event: pb.RunEvent) -> None:
        match event.WhichOneof("event"):
            case "run_started" if not self._has_begun:
                self._has_begun = True
                for sink in self._sinks:
                    sink.begin(_tracked(event.run_started))
            case "client_reported":
                self._values.report(event.client_reported)
            case "round_closed":
                self._log(self._values.close(event.round_closed))
            case "run_ended":
                self._log(self._values.rest())
                self._end(event.run_ended)

    def close(self, *, reason: str = "") -> None:
        """Ends the run in every tracker, if its end was not seen, and waits for them."""
        if self._has_begun and not self._has_ended:
            self._log(self._values.rest())
            self._end(pb.RunEnded(outcome=pb.RUN_OUTCOME_UNSPECIFIED, reason=reason or "no longer followed"))
        for sink in self._sinks:
            sink.close()

    def _log(self, rounds: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        for step, values in rounds:
            for sink in self._sinks:
                sink.log(step, values)

    def _end(self, ended: pb.RunEnded) -> None:
        self._has_ended = True
        for sink in self._sinks:
            sink.end(finished=ended.outcome == pb.RUN_OUTCOME_FINISHED, reason=printable(ended.reason))


async def follow(
    tracker: Tracker,
    address: str,
    credentials: ClientCredentials,
    *,
    patience: timedelta | None = None,
    on_outage: Callable[[FedDBPError], None] | None = None,
) -> None:
    """Feeds the tracker until the run has ended; a broken stream is opened again until `patience` is over.

    `on_outage` is called once for every time without an answer. Raises the last error when the patience is over; at
    once if the server refuses the request.
    """
    loop = asyncio.get_running_loop()
    last, is_out = loop.time(), False
    while not tracker.has_ended:
        try:
            async for events in watch_run(address, credentials, from_round=tracker.next_round):
                last, is_out = loop.time(), False
                for event in events.events:
                    tracker.handle(event)
        except FedDBPError as error:
            is_refused = isinstance(error, RequestRefusedError) and not error.transient
            if is_refused or (patience is not None and loop.time() - last >= patience.total_seconds()):
                raise
            if on_outage is not None and not is_out:
                on_outage(error)
            is_out = True
        if not tracker.has_ended:
            await asyncio.sleep(_RETRY_SECONDS)


def _tracked(started: pb.RunStarted) -> TrackedRun:
    run = run_from_proto(started.config)
    return TrackedRun(
        run_id=printable(started.run_id),
        name=f"{run.method}-{run.data.dataset}-seed-{run.seed}",
        settings={"feddbp_version": printable(started.software_version), **dotted(visible(run))},
    )
