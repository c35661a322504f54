"""Where a run is recorded: the files in its state directory, and the operator's command."""

from __future__ import annotations

from dataclasses import dataclass, field

from feddbp_server.reporting.audit import Audit
from feddbp_server.reporting.event_command import EventCommand
from feddbp_server.reporting.history import RunHistory
from feddbp_server.reporting.metrics_log import MetricsLog
from feddbp_server.reporting.prototype_snapshots import PrototypeSnapshots


@dataclass(frozen=True, kw_only=True)
class RunRecords:
    """Owns the files until `close`."""

    audit: Audit
    metrics_log: MetricsLog
    history: RunHistory
    snapshots: PrototypeSnapshots | None = None
    """None unless the run shares prototypes with operators."""
    command: EventCommand = field(default_factory=EventCommand)

    def forget(self) -> None:
        """Begins the records of a new run; the audit log is appended to."""
        self.metrics_log.restore([])
        self.history.forget()
        if self.snapshots is not None:
            self.snapshots.forget()

    def close(self) -> None:
        self.metrics_log.close()
        self.history.close()
        self.audit.close()
