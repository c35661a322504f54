"""The live view of a run: rows, progress, and the estimate of the time left."""

from __future__ import annotations

import pytest
from lab_samples import client, printed, run_status

from feddbp.v1 import federation_pb2 as pb
from feddbp_lab.terminal.format import sparkline
from feddbp_lab.terminal.live import LiveView, RunHistory


def drawn(status: pb.RunStatus, *, width: int = 80, height: int = 24, now: float = 0.0) -> str:
    history = RunHistory()
    history.update(status, 0.0)
    return printed(
        LiveView(status=status, history=history, title="FedDBP on digits", clock=lambda: now),
        width=width,
        height=height,
    )


def test_the_round_is_counted_from_one() -> None:
    assert "training round 4/10" in drawn(run_status(client(0)))


def test_a_client_shows_its_epochs_classes_samples_and_accuracy() -> None:
    text = drawn(run_status(client(2, epochs_done=3, metrics_round=2, correct=41)))
    row = next(line for line in text.splitlines() if "mini_depthwise" in line)
    assert row.split() == ["2", "mini_depthwise", "training", "3/5", "epochs", "3", "170", "82.0", "%"]


@pytest.mark.parametrize(
    ("activity", "phase", "word"),
    [
        (pb.CLIENT_ACTIVITY_TRAINING, pb.PHASE_COLLECTING, "queued"),
        (pb.CLIENT_ACTIVITY_UPLOADED, pb.PHASE_COLLECTING, "uploaded"),
        (pb.CLIENT_ACTIVITY_AWAY, pb.PHASE_COLLECTING, "away"),
        (pb.CLIENT_ACTIVITY_IDLE, pb.PHASE_WAITING, "ready"),
        (pb.CLIENT_ACTIVITY_IDLE, pb.PHASE_EVALUATING, "evaluating"),
        (pb.CLIENT_ACTIVITY_DONE, pb.PHASE_EVALUATING, "done"),
        (pb.CLIENT_ACTIVITY_AWAY, pb.PHASE_FINISHED, "done"),
    ],
)
def test_every_activity_has_a_word(activity: pb.ClientActivity.ValueType, phase: pb.Phase.ValueType, word: str) -> None:
    text = drawn(run_status(client(0, activity), phase=phase))
    assert word in next(line for line in text.splitlines() if "mini_plain" in line)


def test_accuracy_before_any_training_is_not_shown() -> None:
    before = run_status(client(0, metrics_round=0), client(1, metrics_round=1, correct=25), mean_accuracy=0.0)
    after = run_status(client(0, metrics_round=1), client(1, metrics_round=1, correct=25), mean_accuracy=0.25)
    assert "mean accuracy –" in drawn(before)
    assert "mean accuracy 25.0 %" in drawn(after)


def test_the_accuracy_says_over_how_many_clients_it_is() -> None:
    status = run_status(client(0, metrics_round=1), mean_accuracy=0.25, accuracy_clients=1, total_clients=8)
    assert "mean accuracy 25.0 % over 1 of 8 clients" in drawn(status)
    untrained = client(0, metrics_round=4, correct=25)
    untrained.is_trained = False
    assert "50.0 %" not in drawn(run_status(untrained))


def test_traffic_is_shown_in_decimal_units() -> None:
    assert "up 1.2 MB   down 640 kB" in drawn(run_status(client(0)))


def test_a_waiting_run_shows_how_many_clients_have_joined() -> None:
    text = drawn(run_status(client(0), client(5), phase=pb.PHASE_WAITING, round=0))
    assert "waiting for clients 2/8" in text


def test_there_is_no_table_before_a_client_has_joined() -> None:
    text = drawn(run_status(phase=pb.PHASE_WAITING, round=0))
    assert "The clients are loading" in text
    assert "architecture" not in text


def test_eight_clients_fit_a_terminal_of_eighty_columns() -> None:
    clients = [client(number, epochs_done=5, metrics_round=2, correct=50) for number in range(8)]
    lines = drawn(run_status(*clients)).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) < 24
    assert sum("epochs" in line for line in lines) == 8


def test_clients_that_do_not_fit_are_counted_by_activity() -> None:
    clients = [client(number, pb.CLIENT_ACTIVITY_UPLOADED) for number in range(30)]
    lines = drawn(run_status(*clients)).splitlines()
    assert len(lines) < 24
    assert "15 more: 15 uploaded" in lines[-1]


def test_a_client_that_left_before_the_end_is_not_done() -> None:
    clients = client(0), client(1, pb.CLIENT_ACTIVITY_LEFT), client(2, pb.CLIENT_ACTIVITY_BLOCKED)
    done, left, blocked = drawn(run_status(*clients, phase=pb.PHASE_FINISHED)).splitlines()[-3:]
    assert "done" in done
    assert "left" in left
    assert "blocked" in blocked


def test_a_wide_terminal_shows_parameters_device_and_trend() -> None:
    text = drawn(run_status(client(1, metrics_round=2, correct=25)), width=140)
    assert "123,456" in text
    assert "cpu" in text
    assert "▅" in text


@pytest.mark.parametrize("width", [80, 100, 123, 124])
def test_no_column_is_cut_off(width: int) -> None:
    text = drawn(run_status(client(2, epochs_done=3, metrics_round=2, correct=25)), width=width)
    assert "…" not in text


def test_time_left_is_estimated_once_enough_rounds_are_done() -> None:
    history = RunHistory()
    history.update(run_status(client(0), round=0), 0.0)
    later = run_status(client(0), round=2)
    history.update(later, 10.0)
    assert history.seconds_left(later, 10.0) == pytest.approx(40.0)
    too_early = run_status(client(0), round=0)
    assert history.seconds_left(too_early, 1.0) is None


def test_a_part_of_the_open_round_counts_as_progress() -> None:
    history = RunHistory()
    history.update(run_status(client(0), client(1), round=0), 0.0)
    half = run_status(client(0, pb.CLIENT_ACTIVITY_UPLOADED), client(1), round=0, rounds=1)
    assert history.seconds_left(half, 6.0) == pytest.approx(6.0)


def test_the_trend_has_each_round_once() -> None:
    history = RunHistory()
    for number, correct in ((0, 0), (1, 10), (1, 10), (2, 20)):
        history.update(run_status(client(4, metrics_round=number, correct=correct)), 0.0)
    assert history.trend(4) == [0.2, 0.4]


def test_a_sparkline_has_the_newest_values() -> None:
    assert sparkline([0.0, 0.5, 1.0], 2) == "▅█"
