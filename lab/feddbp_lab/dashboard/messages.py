"""Protobuf messages of the Control service as the page's JSON."""

from __future__ import annotations

from typing import Any

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.run import run_from_proto
from feddbp_common.humanize import address_text, short_device
from feddbp_common.rpc.enum_words import enum_word
from feddbp_lab.dashboard.model import Json, ReportRow
from feddbp_lab.results.run_info import run_info
from feddbp_lab.terminal.status_words import mean_accuracy, rounds_done


def started(event: pb.RunStarted) -> Json:
    return run_info(
        run_from_proto(event.config),
        run_id=event.run_id,
        version=event.software_version,
        shares_prototypes=event.shares_prototypes,
    )


def joined(event: pb.ClientJoined) -> Json:
    return {
        "id": event.client_id,
        "name": event.capabilities.name,
        "architecture": event.capabilities.architecture,
        "device": short_device(event.capabilities.device),
        "parameters": event.capabilities.parameters,
        "label_counts": list(event.data.label_counts),
        "test_samples": event.data.test_samples,
    }


def reported(event: pb.ClientReported) -> ReportRow:
    metrics = event.metrics
    correct = next((entry.correct for entry in metrics.accuracies if entry.rule == metrics.inference), 0)
    return ReportRow(
        client=event.client_id,
        round=event.round,
        accuracy=correct / metrics.test_samples if metrics.test_samples else 0.0,
        samples=metrics.test_samples,
        train=metrics.seconds.train,
        evaluate=metrics.seconds.evaluate,
        collect=metrics.seconds.collect,
        up=metrics.bytes_up,
        down=metrics.bytes_down,
        has_trained=len(metrics.losses) > 0,
        losses={term.name: term.value for term in metrics.losses},
    )


def closed(event: pb.RoundClosed) -> Json:
    return {
        "round": event.round,
        "opened_at": event.opened_at.ToNanoseconds() / 1e9,
        "seconds": round(event.seconds, 4),
        "aggregation": round(event.aggregation_seconds, 5),
        "missing": list(event.missing),
        "memory": event.resident_bytes,
        "clients": {
            times.client_id: [
                _at(times, "download_begun"),
                _at(times, "download_ended"),
                _at(times, "upload_begun"),
                _at(times, "upload_ended"),
            ]
            for times in event.clients
        },
    }


def _at(times: pb.ClientTimes, step: str) -> float | None:
    return round(float(getattr(times, step)), 3) if times.HasField(step) else None  # type: ignore[arg-type]


def status(message: pb.RunStatus) -> Json:
    health = message.health
    return {
        "phase": enum_word(pb.Phase.DESCRIPTOR, message.phase),
        "held_phase": enum_word(pb.Phase.DESCRIPTOR, message.held_phase) if message.held_phase else None,
        "round": message.round,
        "rounds": message.rounds,
        "done": round(rounds_done(message), 3),
        "min_clients": message.min_clients,
        "missing": list(message.missing),
        "reason": message.reason,
        "seconds_left": message.time_left.ToTimedelta().total_seconds() if message.HasField("time_left") else None,
        "mean_accuracy": mean_accuracy(message),
        "bytes_up": message.bytes_up,
        "bytes_down": message.bytes_down,
        "version": message.software_version,
        "refusals": dict(message.refusals),
        "incidents": [_incident(incident) for incident in message.incidents],
        "memory": health.resident_bytes,
        "aggregations": health.aggregations,
        "aggregation_seconds": round(health.aggregation_seconds, 4),
        "uptime": round(health.uptime.ToTimedelta().total_seconds(), 1),
    }


def activities(message: pb.RunStatus) -> dict[int, Json]:
    return {client.client_id: _activity(client) for client in message.clients}


def _activity(client: pb.ClientStatus) -> Json:
    made: dict[str, Any] = {
        "activity": enum_word(pb.ClientActivity.DESCRIPTOR, client.activity),
        "epochs": [client.progress.epochs_done, client.progress.epochs],
        "address": address_text(client.peer),
        "up": client.bytes_up,
        "down": client.bytes_down,
    }
    if client.activity in (pb.CLIENT_ACTIVITY_AWAY, pb.CLIENT_ACTIVITY_LEFT):
        # of a connected client it is now, which would change every row of every status
        made["last_seen"] = round(client.last_seen.ToNanoseconds() / 1e9, 1)
    return made


def _incident(incident: pb.Incident) -> Json:
    return {
        "at": incident.at.ToNanoseconds() / 1e9,
        "client": incident.client_id if incident.HasField("client_id") else None,
        "message": incident.message,
    }
