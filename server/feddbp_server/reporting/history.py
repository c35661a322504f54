"""The history of a run: `rounds.jsonl`, `clients.jsonl`, and its events as they happen, for those who watch."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.artifacts import CLIENTS_NAME, ROUNDS_NAME
from feddbp_common.atomic_files import LineFile
from feddbp_server.process import resident_bytes
from feddbp_server.reporting.json_lines import JsonLines
from feddbp_server.reporting.metrics_log import Report
from feddbp_server.run.sessions import Session

log = logging.getLogger("feddbp.server")

_CLIENT_LINES: Final = 8
"""Lines of one client in `clients.jsonl`: one that joins with other data again and again must not fill the disk."""
_STEPS: Final = ("download_begun", "download_ended", "upload_begun", "upload_ended")


@dataclass(kw_only=True)
class RoundRecord:
    """A round that was aggregated: a line of `rounds.jsonl`."""

    round: int
    opened_at: float
    """Seconds since 1970."""
    seconds: float
    aggregation_seconds: float
    missing: list[int]
    resident_bytes: int
    clients: dict[int, list[float | None]]
    """By client id, the times of `_STEPS` in seconds since the round opened; None for a step that was not seen."""

    def as_line(self) -> str:
        times = {str(number): [_rounded(at) for at in steps] for number, steps in sorted(self.clients.items())}
        return json.dumps(
            {
                "round": self.round,
                "opened_at": round(self.opened_at, 3),
                "seconds": round(self.seconds, 6),
                "aggregation_seconds": round(self.aggregation_seconds, 6),
                "missing": self.missing,
                "resident_bytes": self.resident_bytes,
                "steps": _STEPS,
                "clients": times,
            }
        )

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> RoundRecord:
        """Raises one of `json_lines.MALFORMED` if something is missing or of the wrong type."""
        return cls(
            round=stored["round"],
            opened_at=stored["opened_at"],
            seconds=stored["seconds"],
            aggregation_seconds=stored["aggregation_seconds"],
            missing=list(stored["missing"]),
            resident_bytes=stored["resident_bytes"],
            clients={int(number): list(steps) for number, steps in stored["clients"].items()},
        )

    def as_event(self) -> pb.RunEvent:
        closed = pb.RoundClosed(
            round=self.round,
            seconds=self.seconds,
            aggregation_seconds=self.aggregation_seconds,
            missing=self.missing,
            resident_bytes=self.resident_bytes,
            clients=(
                pb.ClientTimes(client_id=number, **dict(zip(_STEPS, steps, strict=True)))
                for number, steps in sorted(self.clients.items())
            ),
        )
        closed.opened_at.FromNanoseconds(int(self.opened_at * 1e9))
        return pb.RunEvent(round_closed=closed)


def read_rounds(path: Path) -> JsonLines[RoundRecord]:
    """The rounds in a file, by number; of a repeated round the last line counts. Raises OSError."""
    read = JsonLines.read(path, RoundRecord.from_dict)
    found = {record.round: record for record in read.entries}
    return JsonLines([found[number] for number in sorted(found)], read.damaged)


@dataclass(eq=False)
class Watcher:
    """The events that one caller has not been sent yet."""

    room: int
    queue: asyncio.Queue[pb.RunEvent | None] = field(default_factory=asyncio.Queue)
    """None is the end of the stream."""
    too_slow: bool = False

    def offer(self, event: pb.RunEvent | None) -> None:
        if self.too_slow:
            return  # the end of the stream is in the queue
        if self.queue.qsize() >= self.room:
            self.too_slow, event = True, None
        self.queue.put_nowait(event)


@dataclass(kw_only=True)
class _OpenRound:
    number: int
    opened_at: float
    opened: float
    clients: dict[int, list[float | None]] = field(default_factory=dict)


class RunHistory:
    """Owns `rounds.jsonl`, `clients.jsonl`, the times of the open round, and the watchers; used on the event loop."""

    def __init__(self, directory: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rounds = LineFile(directory / ROUNDS_NAME, log)
        self._clients = LineFile(directory / CLIENTS_NAME, log)
        self._last_lines: dict[int, str] = {}
        """By client id, what was written of it last."""
        self._client_lines: Counter[int] = Counter()
        self._clock = clock
        self._open: _OpenRound | None = None
        self._watchers: set[Watcher] = set()
        self._started = clock()

    @property
    def uptime(self) -> float:
        return self._clock() - self._started

    def forget(self) -> None:
        """Begins a new run: rounds of another run in the directory are removed."""
        for lines in (self._rounds, self._clients):
            lines.remove()

    def rounds(self) -> list[RoundRecord]:
        """The rounds so far; to be called in a thread, since the file grows with the run."""
        read = read_rounds(self._rounds.path)
        if read.damaged:
            log.warning("%s", read.note(ROUNDS_NAME))
        return read.entries

    # --- what happens ---

    def joined(self, session: Session) -> None:
        line, client = client_line(session), session.client_id
        is_new = line != self._last_lines.get(client)
        if is_new and self._client_lines[client] < _CLIENT_LINES:
            self._last_lines[client] = line
            self._client_lines[client] += 1
            self._clients.append(line)
        self._publish(joined_event(session))

    def opened(self, number: int) -> None:
        self._open = _OpenRound(number=number, opened_at=time.time(), opened=self._clock())

    @contextmanager
    def downloading(self, client_id: int, number: int) -> Iterator[None]:
        """Times the download of a client."""
        self._mark(client_id, number, "download_begun")
        yield
        self._mark(client_id, number, "download_ended")

    def upload_begun(self, client_id: int, number: int) -> None:
        self._mark(client_id, number, "upload_begun")

    def upload_ended(self, client_id: int, number: int) -> None:
        self._mark(client_id, number, "upload_ended")

    def reported(self, report: Report) -> None:
        if self._watchers:
            self._publish(reported_event(report))

    def closed(self, number: int, *, aggregation_seconds: float, missing: Iterable[int]) -> None:
        opened, self._open = self._open, None
        if opened is None or opened.number != number:
            return
        record = RoundRecord(
            round=number,
            opened_at=opened.opened_at,
            seconds=self._clock() - opened.opened,
            aggregation_seconds=aggregation_seconds,
            missing=sorted(missing),
            resident_bytes=resident_bytes(),
            clients=opened.clients,
        )
        self._rounds.append(record.as_line())
        if self._watchers:
            self._publish(record.as_event())

    def ended(self, event: pb.RunEvent) -> None:
        self._publish(event)
        self.end_streams()

    def end_streams(self) -> None:
        """Ends every stream of events."""
        for watcher in self._watchers:
            watcher.offer(None)

    def close(self) -> None:
        """Closes the files."""
        for lines in (self._rounds, self._clients):
            lines.close()

    # --- watchers ---

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    @contextmanager
    def watching(self, *, room: int) -> Iterator[Watcher]:
        watcher = Watcher(room)
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)

    def _publish(self, event: pb.RunEvent) -> None:
        for watcher in self._watchers:
            watcher.offer(event)

    def _mark(self, client_id: int, number: int, step: str) -> None:
        opened = self._open
        if opened is None or opened.number != number:
            return
        steps = opened.clients.setdefault(client_id, [None] * len(_STEPS))
        steps[_STEPS.index(step)] = self._clock() - opened.opened


def client_line(session: Session) -> str:
    """A line of `clients.jsonl`; the last of a client counts."""
    capabilities, data = session.capabilities, session.data
    return json.dumps(
        {
            "client": session.client_id,
            "architecture": capabilities.architecture,
            "parameters": capabilities.parameters,
            "device": capabilities.device,
            "label_counts": list(data.label_counts),
            "test_samples": data.test_samples,
        }
    )


def joined_event(session: Session) -> pb.RunEvent:
    joined = pb.ClientJoined(client_id=session.client_id, data=session.data, capabilities=session.capabilities)
    return pb.RunEvent(client_joined=joined)


def reported_event(report: Report) -> pb.RunEvent:
    reported = pb.ClientReported(client_id=report.client_id, round=report.round, metrics=report.metrics)
    return pb.RunEvent(client_reported=reported)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
