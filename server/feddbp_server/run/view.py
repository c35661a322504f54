"""A read-only view of a run, for status and metrics."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.privacy_text import privacy_sentences
from feddbp_common.evaluation import CurrentAccuracy
from feddbp_server.reporting.event_log import Incident
from feddbp_server.reporting.metrics_log import Report, Traffic
from feddbp_server.run.durations import Durations, PhaseTimes
from feddbp_server.run.engine import RunEngine
from feddbp_server.run.participants import never_joined, sole_participant
from feddbp_server.run.sessions import Session
from feddbp_server.run.state_machine.state import Phase, RoundPolicy, RunState


class RunView:
    """Reads a run and changes nothing; to be used on the event loop."""

    def __init__(self, engine: RunEngine) -> None:
        self._engine = engine

    @property
    def run_id(self) -> str:
        return self._engine.run_id

    @property
    def method(self) -> str:
        return self._engine.config.method

    @property
    def privacy(self) -> list[str]:
        """What the run promises of the privacy of its clients' samples."""
        return privacy_sentences(self._engine.config)

    @property
    def policy(self) -> RoundPolicy:
        return self._engine.policy

    @property
    def state(self) -> RunState:
        return self._engine.state

    @property
    def missing(self) -> frozenset[int]:
        """Clients the phase waits for; before a round opens, those that the join window is for."""
        state = self._engine.state
        return self._engine.policy.awaited(state) if state.phase is Phase.WAITING else state.missing

    @property
    def never_joined(self) -> frozenset[int]:
        return never_joined(self._engine.state, self._engine.policy)

    @property
    def trains_alone(self) -> bool:
        return sole_participant(self._engine.state, self._engine.policy) is not None

    @property
    def draining(self) -> bool:
        return self._engine.draining

    @property
    def storage_trouble(self) -> str:
        """Why the store is not writable; empty while it is."""
        return self._engine.storage_trouble

    def upcoming_change(self) -> asyncio.Event:
        """Set at the next change; to be taken before the run is read, so that no change in between is missed."""
        return self._engine.status_changed.upcoming()

    @property
    def uptime(self) -> float:
        """Seconds since this server started."""
        return self._engine.history.uptime

    def time_left(self) -> float | None:
        """Seconds to the deadline of the phase; none if it has no deadline."""
        deadline = self._engine.state.deadline
        return None if deadline is None else max(0.0, deadline - self._engine.clock())

    # --- clients ---

    def sessions(self) -> Sequence[Session]:
        """The newest session of every client that ever joined, by client id."""
        return self._engine.sessions.all()

    def activity_of(self, session: Session) -> pb.ClientActivity.ValueType:
        state, client_id = self._engine.state, session.client_id
        if client_id in state.blocked:
            return pb.CLIENT_ACTIVITY_BLOCKED
        if state.phase is Phase.EVALUATING and client_id in state.reported:
            return pb.CLIENT_ACTIVITY_DONE
        if not self._engine.sessions.is_current(session):
            return pb.CLIENT_ACTIVITY_LEFT
        if session.streams == 0:
            return pb.CLIENT_ACTIVITY_AWAY
        if client_id in state.selected:
            return pb.CLIENT_ACTIVITY_UPLOADED if client_id in state.uploaded else pb.CLIENT_ACTIVITY_TRAINING
        return pb.CLIENT_ACTIVITY_IDLE

    def seconds_unseen(self, session: Session) -> float:
        """Seconds since a client's last sign of life; an open event stream is one."""
        return 0.0 if session.streams else self._engine.clock() - session.last_seen

    # --- results ---

    def newest_report_of(self, client_id: int) -> Report | None:
        return self._engine.metrics_log.newest_of(client_id)

    def accuracy(self) -> CurrentAccuracy | None:
        """Over the newest evaluation of every client; None before the first after training."""
        return self._engine.metrics_log.accuracy()

    def is_trained(self, report: Report) -> bool:
        """Whether a client's newest report is on a model that it has trained."""
        return self._engine.metrics_log.counts(report)

    def first_round_of(self, client_id: int) -> int | None:
        """The round in which a client first trained."""
        return self._engine.metrics_log.first_round_of(client_id)

    def trained_rounds_of(self, client_id: int) -> int:
        """In how many rounds a client trained."""
        return self._engine.metrics_log.trained_rounds_of(client_id)

    @property
    def traffic(self) -> Traffic:
        return self._engine.metrics_log.traffic

    def traffic_of(self, client_id: int) -> Traffic:
        return self._engine.metrics_log.traffic_of(client_id)

    # --- events since this server started ---

    @property
    def incidents(self) -> Sequence[Incident]:
        return self._engine.event_log.incidents

    @property
    def refusals(self) -> Mapping[str, int]:
        """Refused calls, by reason."""
        return self._engine.event_log.audit.refusals

    @property
    def refused_calls(self) -> Counter[tuple[str, str]]:
        """Refused calls, by method and reason."""
        return self._engine.event_log.audit.refused

    def audited(self, what: str) -> int:
        """Entries of one kind in the audit log, whether or not they could be written."""
        return self._engine.event_log.audit.recorded[what]

    @property
    def phase_times(self) -> PhaseTimes:
        return self._engine.phase_times

    @property
    def aggregation_times(self) -> Durations:
        return self._engine.closer.times
