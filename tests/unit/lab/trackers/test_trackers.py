"""Runs in trackers: the values of every round, read back with each tracker's own reader."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from processes import wait_until

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.run import RunConfig, run_to_proto
from feddbp_common.errors import ConfigurationError
from feddbp_lab.trackers import tracking
from feddbp_lab.trackers.sinks import Sink, TrackedRun, sink_for
from feddbp_lab.trackers.tracking import Tracker
from feddbp_lab.trackers.values import RoundValues


def started() -> pb.RunEvent:
    run = run_to_proto(RunConfig(method="fedproto", clients=2, rounds=2))
    return pb.RunEvent(run_started=pb.RunStarted(run_id="4080fea6-a7ee9529", config=run, software_version="0.2.0"))


def reported(client: int, number: int, *, correct: int, samples: int = 10, loss: float | None = None) -> pb.RunEvent:
    metrics = pb.RoundMetrics(
        accuracies=[pb.Accuracy(rule="head", correct=0), pb.Accuracy(rule="prototype", correct=correct)],
        inference="prototype",
        test_samples=samples,
        losses=[] if loss is None else [pb.LossTerm(name="ce", value=loss)],
        bytes_up=100,
        bytes_down=50,
    )
    return pb.RunEvent(client_reported=pb.ClientReported(client_id=client, round=number, metrics=metrics))


def closed(number: int) -> pb.RunEvent:
    uploads = [pb.ClientTimes(client_id=client, upload_begun=1, upload_ended=2) for client in (0, 1)]
    return pb.RunEvent(round_closed=pb.RoundClosed(round=number, seconds=3.5, clients=uploads, resident_bytes=1 << 20))


def ended(outcome: pb.RunOutcome.ValueType = pb.RUN_OUTCOME_FINISHED) -> pb.RunEvent:
    return pb.RunEvent(run_ended=pb.RunEnded(outcome=outcome, reason="all rounds are done"))


def whole_run() -> list[pb.RunEvent]:
    return [
        started(),
        reported(0, 0, correct=1, loss=2.0),
        reported(1, 0, correct=3, samples=30, loss=4.0),
        closed(0),
        reported(0, 1, correct=5, loss=1.0),
        reported(1, 1, correct=9, samples=30, loss=float("nan")),
        closed(1),
        reported(0, 2, correct=8),
        reported(1, 2, correct=24, samples=30),
        ended(),
    ]


class Recorded(Sink):
    """Keeps what it is told."""

    modules = ()
    extra = ""

    def __init__(self, fail_at: int | None = None, hold: threading.Event | None = None) -> None:
        self.run: TrackedRun | None = None
        self.steps: list[tuple[int, dict[str, float]]] = []
        self.ended: tuple[bool, str] | None = None
        self._fail_at, self._hold = fail_at, hold

    def begin(self, run: TrackedRun) -> None:
        self.run = run

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if self._hold is not None:
            self._hold.wait()
        if len(self.steps) == self._fail_at:
            raise OSError("quota exceeded\x1b[31m")
        self.steps.append((step, dict(values)))

    def end(self, *, finished: bool, reason: str) -> None:
        self.ended = finished, reason


def track(
    events: list[pb.RunEvent], monkeypatch: pytest.MonkeyPatch, *sinks: Sink, warnings: list[str] | None = None
) -> None:
    remaining = list(sinks)
    monkeypatch.setattr(tracking, "sink_for", lambda _: remaining.pop(0))
    tracker = Tracker(["recorded"] * len(sinks), warn=(warnings if warnings is not None else []).append)
    for event in events:
        tracker.handle(event)
    tracker.close()


def test_a_run_is_told_by_completed_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Recorded()
    track(whole_run(), monkeypatch, sink)
    assert sink.run is not None
    assert sink.run.name == "fedproto-digits-seed-0"
    assert sink.run.settings["training.learning_rate"] == 0.01
    by_step: dict[int, dict[str, float]] = {}
    for step, values in sink.steps:
        by_step.setdefault(step, {}).update(values)
    assert [step for step, _ in sink.steps] == [0, 1, 1, 2, 2]
    assert by_step[0]["accuracy/all"] == 4 / 40
    assert by_step[1] == {
        "loss/ce": 3.0,
        "accuracy/client_0": 0.5,
        "accuracy/client_1": 0.3,
        "accuracy/all": 14 / 40,
        "accuracy/mean_over_clients": 0.4,
        "accuracy/clients": 2,
        "round/seconds": 3.5,
        "round/aggregation_seconds": 0,
        "round/uploads": 2,
        "round/missing": 0,
        "traffic/bytes_up": 200,
        "traffic/bytes_down": 100,
        "server/resident_bytes": 1 << 20,
    }
    assert by_step[2]["accuracy/all"] == 32 / 40
    assert by_step[2]["loss/ce"] == 1.0
    assert sink.ended == (True, "all rounds are done")


def test_a_stream_that_is_opened_again_tells_nothing_twice() -> None:
    values, first = RoundValues(), whole_run()[1:4]
    for event in first[:2]:
        values.report(event.client_reported)
    assert len(values.close(first[2].round_closed)) == 2
    assert values.open_round == 1
    for event in first[:2]:
        values.report(event.client_reported)
    assert values.close(first[2].round_closed) == []
    assert values.rest() == []


def test_a_tracker_that_fails_warns_once_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    failing, healthy, warnings = Recorded(fail_at=1), Recorded(), list[str]()
    track(whole_run(), monkeypatch, failing, healthy, warnings=warnings)
    assert warnings == ["recorded is not tracked any more: OSError: quota exceeded\\x1b[31m"]
    assert len(failing.steps) == 1
    assert healthy.ended == (True, "all rounds are done")


def test_a_tracker_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "_CLOSING_SECONDS", 0.05)
    released = threading.Event()
    hanging, warnings = Recorded(hold=released), list[str]()
    track(whole_run(), monkeypatch, hanging, warnings=warnings)
    released.set()
    assert warnings == ["recorded is not tracked any more: still busy after 0.05 s"]


def test_a_run_whose_end_was_not_seen_is_not_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Recorded()
    track(whole_run()[:-1], monkeypatch, sink)
    assert sink.ended == (False, "no longer followed")
    assert sink.steps[-1][1]["accuracy/all"] == 32 / 40


def run_through(spec: str) -> None:
    warnings: list[str] = []
    tracker = Tracker([spec], warn=warnings.append)
    for event in whole_run():
        tracker.handle(event)
    tracker.close()
    assert warnings == []


def test_tensorboard_reads_back_what_was_tracked(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    run_through(f"tensorboard:{tmp_path}")
    (directory,) = tmp_path.iterdir()
    assert directory.name == "fedproto-digits-seed-0-4080fea6-a7ee9529"
    events = EventAccumulator(str(directory))
    events.Reload()
    curve = {event.step: float(make_ndarray(event.tensor_proto)) for event in events.Tensors("accuracy/all")}
    assert curve == {0: pytest.approx(0.1), 1: pytest.approx(0.35), 2: pytest.approx(0.8)}


def test_mlflow_reads_back_what_was_tracked(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="the extra `mlflow` is not installed")
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    run_through(f"mlflow:{uri}")
    run_through(f"mlflow:{uri}")
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("feddbp")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == 2
    assert runs[0].info.status == "FINISHED"
    assert runs[0].data.params["method"] == "fedproto"
    curve = {metric.step: metric.value for metric in client.get_metric_history(runs[0].info.run_id, "accuracy/all")}
    assert curve == {0: 0.1, 1: 0.35, 2: 0.8}


def test_wandb_keeps_a_run_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="the extra `wandb` is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    run_through("wandb:feddbp-test")
    (log,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    # wandb writes in a process of its own, also after the run is finished
    wait_until(lambda: b"accuracy/all" in log.read_bytes(), "wandb has written the values")
    assert b"fedproto-digits-seed-0" in log.read_bytes()


@pytest.mark.parametrize("spec", ["", "neptune", "Tensorboard"])
def test_an_unknown_tracker_is_refused_with_those_there_are(spec: str) -> None:
    with pytest.raises(ConfigurationError, match=r"no tracker is called .*; there are: tensorboard\[:DIR\]"):
        sink_for(spec)


def test_a_tracker_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(feature: str, modules: Any, *, extra: str) -> None:
        raise ConfigurationError(f"{feature} needs {', '.join(modules)}: extra {extra}")

    monkeypatch.setattr("feddbp_lab.trackers.sinks.require", missing)
    with pytest.raises(ConfigurationError, match="--track wandb needs wandb: extra wandb"):
        sink_for("wandb:project")
