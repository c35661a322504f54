"""Where the run stands, put together for whoever asks."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final

from feddbp.v1 import federation_pb2 as pb
from feddbp_server.run.coordinator import Coordinator
from feddbp_server.run.sessions import Client
from feddbp_server.run.state_machine import Phase

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
    activity: pb.ClientActivity.Name(activity).removeprefix("CLIENT_ACTIVITY_").lower()
    for activity in pb.ClientActivity.values()
    if activity != pb.CLIENT_ACTIVITY_UNSPECIFIED
}
"""What a client can be doing, in words."""


def status_of(coordinator: Coordinator) -> pb.RunStatus:
    state, policy, results = coordinator.state, coordinator.policy, coordinator.results
    status = pb.RunStatus(
        run_id=coordinator.run_id,
        method=coordinator.config.method,
        phase=_PHASES[state.phase],
        round=state.round,
        rounds=policy.rounds,
        min_clients=policy.min_clients,
        clients=[_client_status(client, coordinator) for client in coordinator.sessions.all()],
        missing=sorted(state.missing),
        reason=state.reason or coordinator.storage_trouble,
        mean_accuracy=mean_accuracy(coordinator),
        bytes_up=results.traffic.up,
        bytes_down=results.traffic.down,
        refusals=coordinator.event_log.audit.refusals,
        held_phase=pb.PHASE_UNSPECIFIED if state.held_phase is None else _PHASES[state.held_phase],
    )
    left = coordinator.time_left()
    if left is not None:
        status.time_left.FromTimedelta(timedelta(seconds=left))
    for incident in coordinator.event_log.incidents:
        entry = status.incidents.add(message=incident.message, client_id=incident.client_id)
        entry.at.FromNanoseconds(int(incident.at * 1e9))
    return status


def mean_accuracy(coordinator: Coordinator) -> float | None:
    """Over all test samples, in the newest round that all its clients have reported on, or that is over."""
    state, results = coordinator.state, coordinator.results
    dealt_to = state.selected | state.observers
    is_complete = state.phase.is_final or (bool(dealt_to) and dealt_to <= state.reported)
    of_complete = results.accuracy_of(state.round if is_complete else state.round - 1)
    # of the very first round, a few reports are better than none
    return results.accuracy_of(state.round) if of_complete is None else of_complete


def _client_status(client: Client, coordinator: Coordinator) -> pb.ClientStatus:
    traffic = coordinator.results.traffic_of(client.client_id)
    status = pb.ClientStatus(
        client_id=client.client_id,
        activity=activity_of(client, coordinator),
        capabilities=client.capabilities,
        classes_held=sum(count > 0 for count in client.data.label_counts),
        train_samples=sum(client.data.label_counts),
        test_samples=client.data.test_samples,
        progress=client.progress,
        bytes_up=traffic.up,
        bytes_down=traffic.down,
    )
    ago = 0.0 if client.streams else coordinator.seconds_since(client.last_seen)
    status.last_seen.FromNanoseconds(int((time.time() - ago) * 1e9))
    newest = coordinator.results.newest_of(client.client_id)
    if newest is not None:
        status.metrics.CopyFrom(newest.metrics)
        status.metrics_round = newest.round
    return status


def activity_of(client: Client, coordinator: Coordinator) -> pb.ClientActivity.ValueType:
    state, client_id = coordinator.state, client.client_id
    if state.phase is Phase.EVALUATING and client_id in state.reported:
        return pb.CLIENT_ACTIVITY_DONE
    if not coordinator.sessions.is_current(client):
        return pb.CLIENT_ACTIVITY_LEFT
    if client.streams == 0:
        return pb.CLIENT_ACTIVITY_AWAY
    if client_id in state.selected:
        return pb.CLIENT_ACTIVITY_UPLOADED if client_id in state.uploaded else pb.CLIENT_ACTIVITY_TRAINING
    return pb.CLIENT_ACTIVITY_IDLE
