"""The status of a run as a message."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.rpc.enum_words import enum_word
from feddbp_common.version import VERSION
from feddbp_server.process import resident_bytes
from feddbp_server.run.sessions import Session
from feddbp_server.run.state_machine.state import Phase
from feddbp_server.run.view import RunView

_PHASES: Final = {
    Phase.WAITING: pb.PHASE_WAITING,
    Phase.COLLECTING: pb.PHASE_COLLECTING,
    Phase.AGGREGATING: pb.PHASE_AGGREGATING,
    Phase.EVALUATING: pb.PHASE_EVALUATING,
    Phase.PAUSED: pb.PHASE_PAUSED,
    Phase.FINISHED: pb.PHASE_FINISHED,
    Phase.FAILED: pb.PHASE_FAILED,
    Phase.STOPPED: pb.PHASE_STOPPED,
}
ACTIVITY_NAMES: Final = {
    activity: enum_word(pb.ClientActivity.DESCRIPTOR, activity)
    for activity in pb.ClientActivity.values()
    if activity != pb.CLIENT_ACTIVITY_UNSPECIFIED
}
"""Activities of a client, as metrics and people read them."""


_PAGE_BYTES: Final = 512 << 10
"""Of the clients of one message; one client, whatever it has said of itself, is smaller."""
_PAGE_CLIENTS: Final = 500
"""So that no page takes the event loop for longer than a few milliseconds."""


def status_of(run: RunView, *, clients_from: int = 0) -> pb.RunStatus:
    """One page of the status: the first has everything of the run itself."""
    if not clients_from:
        status = _run_status(run)
    else:
        status = pb.RunStatus(run_id=run.run_id, phase=_PHASES[run.state.phase], round=run.state.round)
    size = 0
    for session in run.sessions():
        if session.client_id < clients_from:
            continue
        if size > _PAGE_BYTES or len(status.clients) == _PAGE_CLIENTS:
            status.next_client = session.client_id
            break
        client = _client_status(session, run)
        size += client.ByteSize()
        status.clients.append(client)
    return status


def _run_status(run: RunView) -> pb.RunStatus:
    state, policy, accuracy = run.state, run.policy, run.accuracy()
    status = pb.RunStatus(
        run_id=run.run_id,
        software_version=VERSION,
        method=run.method,
        phase=_PHASES[state.phase],
        round=state.round,
        rounds=policy.rounds,
        min_clients=policy.min_clients,
        missing=sorted(run.missing),
        reason=state.reason or run.storage_trouble,
        mean_accuracy=None if accuracy is None else accuracy.accuracy,
        accuracy_clients=0 if accuracy is None else accuracy.clients,
        bytes_up=run.traffic.up,
        bytes_down=run.traffic.down,
        refusals=run.refusals,
        held_phase=pb.PHASE_UNSPECIFIED if state.held_phase is None else _PHASES[state.held_phase],
        total_clients=policy.clients,
        never_joined=sorted(run.never_joined),
        training_alone=run.trains_alone,
        blocked=sorted(state.blocked),
        privacy=run.privacy,
    )
    status.health.CopyFrom(_health(run))
    left = run.time_left()
    if left is not None:
        status.time_left.FromTimedelta(timedelta(seconds=left))
    for incident in run.incidents:
        entry = status.incidents.add(message=incident.shown, client_id=incident.client_id)
        entry.at.FromNanoseconds(int(incident.at * 1e9))
    return status


def _health(run: RunView) -> pb.ServerHealth:
    times = run.aggregation_times
    health = pb.ServerHealth(
        resident_bytes=resident_bytes(), aggregations=times.cumulative[-1], aggregation_seconds=times.seconds
    )
    health.uptime.FromTimedelta(timedelta(seconds=run.uptime))
    return health


def _client_status(session: Session, run: RunView) -> pb.ClientStatus:
    traffic = run.traffic_of(session.client_id)
    status = pb.ClientStatus(
        client_id=session.client_id,
        activity=run.activity_of(session),
        capabilities=session.capabilities,
        classes_held=sum(count > 0 for count in session.data.label_counts),
        train_samples=sum(session.data.label_counts),
        test_samples=session.data.test_samples,
        progress=session.progress,
        bytes_up=traffic.up,
        bytes_down=traffic.down,
        peer=session.peer,
        trained_rounds=run.trained_rounds_of(session.client_id),
        first_round=run.first_round_of(session.client_id),
    )
    status.last_seen.FromNanoseconds(int((time.time() - run.seconds_unseen(session)) * 1e9))
    newest = run.newest_report_of(session.client_id)
    if newest is not None:
        status.metrics.CopyFrom(newest.metrics)
        status.metrics_round = newest.round
        status.is_trained = run.is_trained(newest)
    return status
