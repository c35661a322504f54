"""What a run's status says, as numbers and short texts: progress, accuracy, the phase, and each client's activity."""

from __future__ import annotations

from typing import Final

from rich.text import Text

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.evaluation import accuracy_over_clients
from feddbp_common.humanize import human_bytes, percent

_PHASES: Final = {
    pb.PHASE_WAITING: ("waiting for clients", "yellow"),
    pb.PHASE_COLLECTING: ("training", "cyan"),
    pb.PHASE_AGGREGATING: ("aggregating", "magenta"),
    pb.PHASE_EVALUATING: ("final evaluation", "cyan"),
    pb.PHASE_PAUSED: ("paused", "yellow"),
    pb.PHASE_FINISHED: ("finished", "green"),
    pb.PHASE_FAILED: ("failed", "red"),
    pb.PHASE_STOPPED: ("stopped", "red"),
}
_PAUSED_WHERE: Final = {pb.PHASE_WAITING: "before", pb.PHASE_EVALUATING: "after"}
"""Where a pause interrupted the run, relative to the round it names; in any other phase it is in that round."""
_ACTIVITIES: Final = {
    pb.CLIENT_ACTIVITY_DONE: ("done", "green"),
    pb.CLIENT_ACTIVITY_TRAINING: ("training", "cyan"),
    pb.CLIENT_ACTIVITY_UPLOADED: ("uploaded", "green"),
    pb.CLIENT_ACTIVITY_AWAY: ("away", "red"),
    pb.CLIENT_ACTIVITY_LEFT: ("left", "dim"),
    pb.CLIENT_ACTIVITY_BLOCKED: ("blocked", "red"),
}
_GONE: Final = (pb.CLIENT_ACTIVITY_LEFT, pb.CLIENT_ACTIVITY_BLOCKED)


def rounds_done(status: pb.RunStatus) -> float:
    """Completed rounds, plus the finished part of the open one."""
    if status.phase == pb.PHASE_AGGREGATING:
        return status.round + 1.0
    if status.phase not in (pb.PHASE_COLLECTING, pb.PHASE_PAUSED):
        return float(status.round)
    parts = [part for part in map(_part_done, status.clients) if part is not None]
    return status.round + (sum(parts) / len(parts) if parts else 0.0)


def _part_done(client: pb.ClientStatus) -> float | None:
    if client.activity == pb.CLIENT_ACTIVITY_UPLOADED:
        return 1.0
    if client.activity != pb.CLIENT_ACTIVITY_TRAINING:
        return None
    return client.progress.epochs_done / client.progress.epochs if client.progress.epochs else 0.0


def trained_accuracy(client: pb.ClientStatus) -> float | None:
    """A client's newest accuracy; None before its first training, when an inference rule may lack its prototypes."""
    metrics = client.metrics
    # servers before 0.2.0 do not tell
    is_trained = client.is_trained if client.HasField("is_trained") else client.metrics_round > 0
    if not is_trained or not metrics.test_samples:
        return None
    correct = next((entry.correct for entry in metrics.accuracies if entry.rule == metrics.inference), 0)
    return correct / metrics.test_samples


def mean_accuracy(status: pb.RunStatus) -> float | None:
    """The run's accuracy, by the definition in `feddbp_common.evaluation`; None before the first training."""
    if not status.HasField("mean_accuracy"):
        return None
    if status.HasField("accuracy_clients"):
        return status.mean_accuracy
    # a server before 0.2.0 counts evaluations before the first training
    rounds = [client.metrics_round for client in status.clients if client.HasField("metrics")]
    return status.mean_accuracy if min(rounds, default=0) > 0 else None


def accuracy_text(status: pb.RunStatus) -> str:
    """The run's accuracy, and over how many clients it is."""
    accuracy = mean_accuracy(status)
    if not status.HasField("accuracy_clients"):
        return percent(accuracy)
    return accuracy_over_clients(accuracy, status.accuracy_clients, status.total_clients)


def phase_text(status: pb.RunStatus) -> Text:
    """The phase and the round, counted from 1."""
    word, style = _PHASES.get(status.phase, ("unknown", "red"))
    text = Text(word, style=f"bold {style}")
    if status.phase == pb.PHASE_WAITING:
        joined = sum(client.activity not in _GONE for client in status.clients)
        # a server of 0.1.0 says only how many are needed
        return text.append(f" {joined}/{status.total_clients or status.min_clients} joined", style="default")
    if status.phase in (pb.PHASE_FAILED, pb.PHASE_STOPPED):
        return text.append(f" after {status.round}/{status.rounds} rounds", style="default")
    is_open = status.phase in (pb.PHASE_COLLECTING, pb.PHASE_AGGREGATING, pb.PHASE_PAUSED)
    where = f" {_PAUSED_WHERE.get(status.held_phase, 'in')}" if status.phase == pb.PHASE_PAUSED else ""
    return text.append(f"{where} round {min(status.round + is_open, status.rounds)}/{status.rounds}", style="default")


def totals_text(status: pb.RunStatus) -> Text:
    return Text.assemble(
        ("mean accuracy ", "dim"),
        (accuracy_text(status), "bold"),
        ("   up ", "dim"),
        human_bytes(status.bytes_up),
        ("   down ", "dim"),
        human_bytes(status.bytes_down),
    )


def activity_text(client: pb.ClientStatus, phase: pb.Phase.ValueType) -> Text:
    word, style = activity(client, phase)
    if word == "training" and client.progress.epochs:
        word = f"training {client.progress.epochs_done}/{client.progress.epochs} epochs"
    elif word == "training":
        # selected, but no epoch is done: it downloads, evaluates, or waits for another client of its process
        word, style = "queued", "dim"
    return Text(word, style=style)


def activity(client: pb.ClientStatus, phase: pb.Phase.ValueType) -> tuple[str, str]:
    """A client's activity in a word, and the word's style."""
    if phase == pb.PHASE_FINISHED and client.activity not in _GONE:
        return _ACTIVITIES[pb.CLIENT_ACTIVITY_DONE]
    idle = ("evaluating", "cyan") if phase == pb.PHASE_EVALUATING else ("ready", "dim")
    return _ACTIVITIES.get(client.activity, idle)
