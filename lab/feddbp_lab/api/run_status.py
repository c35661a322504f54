"""The status of a run as plain values: words for enums, None where nothing is known yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.humanize import address_text
from feddbp_common.rpc.enum_words import enum_word
from feddbp_lab.terminal.status_words import mean_accuracy, trained_accuracy


@dataclass(frozen=True, kw_only=True)
class ClientStatus:
    """One client that has joined the run."""

    client: int
    name: str
    """As its operator has given it; empty if none."""
    activity: str
    """away, idle, training, uploaded, done, left or blocked; "activity 99" for one that only the server knows."""
    architecture: str
    parameters: int
    device: str
    software_version: str
    classes_held: int
    train_samples: int
    test_samples: int
    last_seen: str
    """ISO 8601."""
    epochs_done: int
    epochs: int
    accuracy: float | None
    """On its own test samples; None before its first training."""
    accuracy_round: int | None
    trained_rounds: int
    """Rounds in which it trained; 0 if the server is older than 0.2.0."""
    first_round: int | None
    """In which it first trained, counted from 0."""
    train_seconds: float | None
    bytes_up: int
    bytes_down: int
    address: str
    """From which it last joined or followed; empty if the server is older than 0.2.0, or was restarted since."""

    @classmethod
    def from_message(cls, client: pb.ClientStatus) -> ClientStatus:
        measured = client.HasField("metrics")
        return cls(
            client=client.client_id,
            name=client.capabilities.name,
            activity=enum_word(pb.ClientActivity.DESCRIPTOR, client.activity),
            architecture=client.capabilities.architecture,
            parameters=client.capabilities.parameters,
            device=client.capabilities.device,
            software_version=client.capabilities.software_version,
            classes_held=client.classes_held,
            train_samples=client.train_samples,
            test_samples=client.test_samples,
            last_seen=_iso(client.last_seen.ToNanoseconds()),
            epochs_done=client.progress.epochs_done,
            epochs=client.progress.epochs,
            accuracy=trained_accuracy(client),
            accuracy_round=client.metrics_round if measured else None,
            trained_rounds=client.trained_rounds,
            first_round=client.first_round if client.HasField("first_round") else None,
            train_seconds=client.metrics.seconds.train if measured else None,
            bytes_up=client.bytes_up,
            bytes_down=client.bytes_down,
            address=address_text(client.peer),
        )


@dataclass(frozen=True, kw_only=True)
class Incident:
    """A refusal or a failure the server recorded."""

    at: str
    """ISO 8601."""
    client: int | None
    message: str

    @classmethod
    def from_message(cls, incident: pb.Incident) -> Incident:
        return cls(
            at=_iso(incident.at.ToNanoseconds()),
            client=incident.client_id if incident.HasField("client_id") else None,
            message=incident.message,
        )


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """A run at one moment, as its server sees it. The fields are those of `feddbp status --json`."""

    run_id: str
    software_version: str
    """Of the server; empty before 0.2.0."""
    method: str
    phase: str
    """waiting, collecting, aggregating, evaluating, paused, finished, failed or stopped; "phase 99" if only the server
    knows it."""
    held_phase: str | None
    """The phase a pause interrupted."""
    round: int
    """The open round, counted from 0; the number of completed rounds when none is open."""
    rounds: int
    min_clients: int
    total_clients: int
    """Clients of the run; 0 if the server is older than 0.2.0."""
    missing: list[int]
    """Ids the phase still waits for."""
    never_joined: list[int]
    training_alone: bool
    """Whether only one of several clients takes part."""
    blocked: list[int]
    """Ids that an operator has blocked."""
    seconds_left: float | None
    """Until the deadline of the round, or until a waiting run begins without the missing clients, if there is one."""
    reason: str
    """Why the run failed, was stopped, or is held up."""
    mean_accuracy: float | None
    """Over all test samples, in the newest evaluation of every client; None before the first training."""
    accuracy_clients: int | None
    """Clients that `mean_accuracy` is over; None if the server is older than 0.2.0."""
    bytes_up: int
    bytes_down: int
    clients: list[ClientStatus]
    refusals: dict[str, int]
    """Refused calls since the server started, by reason."""
    incidents: list[Incident]
    privacy: list[str] = field(default_factory=list)
    """What the run promises of the privacy of its clients' samples, a sentence each."""

    @classmethod
    def from_message(cls, status: pb.RunStatus) -> RunStatus:
        return cls(
            run_id=status.run_id,
            software_version=status.software_version,
            method=status.method,
            phase=enum_word(pb.Phase.DESCRIPTOR, status.phase),
            held_phase=enum_word(pb.Phase.DESCRIPTOR, status.held_phase) if status.held_phase else None,
            round=status.round,
            rounds=status.rounds,
            min_clients=status.min_clients,
            total_clients=status.total_clients,
            missing=list(status.missing),
            never_joined=list(status.never_joined),
            training_alone=status.training_alone,
            blocked=list(status.blocked),
            seconds_left=status.time_left.ToTimedelta().total_seconds() if status.HasField("time_left") else None,
            reason=status.reason,
            mean_accuracy=mean_accuracy(status),
            accuracy_clients=status.accuracy_clients if status.HasField("accuracy_clients") else None,
            bytes_up=status.bytes_up,
            bytes_down=status.bytes_down,
            clients=[ClientStatus.from_message(client) for client in status.clients],
            refusals=dict(sorted(status.refusals.items())),
            incidents=[Incident.from_message(incident) for incident in status.incidents],
            privacy=list(status.privacy),
        )

    @property
    def is_over(self) -> bool:
        return self.phase in ("finished", "failed", "stopped")


def _iso(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat(timespec="milliseconds")
