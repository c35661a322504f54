"""Event logs that write a real audit log, and the sessions of clients that events are about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from feddbp.v1 import federation_pb2 as pb
from feddbp_server.reporting.audit import Audit
from feddbp_server.reporting.event_log import EventLog
from feddbp_server.reporting.round_lines import RoundLines
from feddbp_server.run.admission.limits import DEFAULT_LIMITS
from feddbp_server.run.sessions import Session


def event_log_in(directory: Path, *, changed: Callable[[], None] = lambda: None) -> EventLog:
    """Of a run with 9 rounds and 8 clients."""
    audit = Audit(directory, clock=lambda: 0.0)  # a stopped clock, so that rate limits do not recover
    rounds = RoundLines(rounds=9, clients=8, clock=lambda: 0.0)
    return EventLog(audit, rounds=rounds, limits=DEFAULT_LIMITS, changed=changed)


def session_of(client_id: int, *, device: str = "") -> Session:
    return Session(
        client_id=client_id,
        epoch=1,
        session_sha256=b"",
        data=pb.DataSummary(label_counts=[5, 0]),
        capabilities=pb.Capabilities(device=device),
        last_seen=0.0,
    )
