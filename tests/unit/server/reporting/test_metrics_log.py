from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.run import RunConfig
from feddbp_common.config.training import TrainingConfig
from feddbp_common.evaluation import CurrentAccuracy, RoundAccuracy
from feddbp_server.reporting.metrics_log import MetricsLog, Report, Traffic
from feddbp_server.reporting.summary import RunOutcome, Tally, summarise
from feddbp_server.run.sessions import Session
from feddbp_server.run.state_machine.state import Phase
from feddbp_server.store import ReportRecord


def report(
    client: int, number: int, correct: int, samples: int, *, up: int = 0, down: int = 0, head: int = 0
) -> Report:
    return Report(
        client_id=client,
        round=number,
        metrics=pb.RoundMetrics(
            accuracies=[pb.Accuracy(rule="head", correct=head), pb.Accuracy(rule="prototype", correct=correct)],
            inference="prototype",
            test_samples=samples,
            losses=[pb.LossTerm(name="ce", value=1.5), pb.LossTerm(name="l_s", value=0.25)],
            seconds=pb.Seconds(evaluate=0.1, train=2.5, collect=0.2),
            bytes_up=up,
            bytes_down=down,
        ),
    )


REPORTS = [
    report(0, 0, 1, 10, up=100, down=0),
    report(1, 0, 30, 40, up=100, down=0),
    report(0, 1, 8, 10, up=100, down=7),
    report(1, 1, 32, 40, up=100, down=7),
    report(0, 2, 5, 10, down=7),
    report(1, 2, 20, 40, down=7),
]


def lines(directory: Path) -> list[dict[str, Any]]:
    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is not JSON")

    text = (directory / "metrics.jsonl").read_text()
    assert text == "" or text.endswith("\n")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


# --- one line per client per round ---


def test_every_report_becomes_a_line(tmp_path: Path) -> None:
    results = MetricsLog(tmp_path)
    results.add(report(3, 2, 8, 10, up=100, down=50, head=4))
    assert lines(tmp_path) == [
        {
            "client": 3,
            "round": 2,
            "accuracy": 0.8,
            "inference": "prototype",
            "accuracies": {"head": 0.4, "prototype": 0.8},
            "test_samples": 10,
            "losses": {"ce": 1.5, "l_s": 0.25},
            "seconds": {"evaluate": 0.1, "train": 2.5, "collect": 0.2},
            "bytes_up": 100,
            "bytes_down": 50,
        }
    ]


def test_a_line_has_the_accuracy_on_rare_classes_of_a_client_that_has_some() -> None:
    with_rare = report(3, 2, 8, 10)
    with_rare.metrics.rare_test_samples, with_rare.metrics.rare_correct = 4, 1
    line = with_rare.as_line()
    assert (line["rare_test_samples"], line["rare_accuracy"]) == (4, 0.25)
    assert "rare_accuracy" not in report(3, 2, 8, 10).as_line()


def test_lines_come_in_the_order_of_the_reports(tmp_path: Path) -> None:
    results = MetricsLog(tmp_path)
    for entry in REPORTS:
        results.add(entry)
    assert [(line["round"], line["client"]) for line in lines(tmp_path)] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
        (2, 0),
        (2, 1),
    ]


def test_a_line_is_readable_as_soon_as_its_report_is_added(tmp_path: Path) -> None:
    results = MetricsLog(tmp_path)
    for count, entry in enumerate(REPORTS, start=1):
        results.add(entry)
        assert len(lines(tmp_path)) == count


def test_the_rule_that_counts_is_the_one_the_report_names() -> None:
    entry = report(0, 0, 3, 4, head=1)
    assert (entry.correct, entry.accuracy) == (3, 0.75)
    entry.metrics.inference = "head"
    assert (entry.correct, entry.accuracy) == (1, 0.25)


def test_a_client_without_test_samples_is_no_division_by_zero(tmp_path: Path) -> None:
    empty = report(0, 0, 0, 0)
    assert empty.accuracy == 0.0
    results = MetricsLog(tmp_path)
    results.add(empty)
    assert lines(tmp_path)[0]["accuracies"] == {"head": 0.0, "prototype": 0.0}
    results.add(report(0, 1, 0, 0))
    assert results.accuracy() is None
    (point,) = accuracy_by_round([empty])
    assert (point.weighted, point.unweighted, point.clients) == (0.0, 0.0, 0)


def test_on_a_restart_the_file_is_rewritten_from_the_store(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"client": 0, "round": 0}\n{"client": 1, "rou')  # torn by a crash
    records = [
        ReportRecord(client_id=entry.client_id, round=entry.round, metrics=entry.metrics.SerializeToString())
        for entry in REPORTS[:3]
    ]
    results = MetricsLog(tmp_path)
    results.restore([Report.from_record(record) for record in records])
    results.add(REPORTS[3])
    assert [(line["round"], line["client"], line["accuracy"]) for line in lines(tmp_path)] == [
        (0, 0, 0.1),
        (0, 1, 0.75),
        (1, 0, 0.8),
        (1, 1, 0.8),
    ]
    assert list(tmp_path.iterdir()) == [tmp_path / "metrics.jsonl"]


def test_a_restart_gives_the_same_numbers_as_no_restart(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    straight, restarted = MetricsLog(tmp_path / "a"), MetricsLog(tmp_path / "b")
    for entry in REPORTS:
        straight.add(entry)
    restarted.restore(REPORTS[:4])
    for entry in REPORTS[4:]:
        restarted.add(entry)
    assert (tmp_path / "a" / "metrics.jsonl").read_text() == (tmp_path / "b" / "metrics.jsonl").read_text()
    assert straight.traffic == restarted.traffic == Traffic(400, 28)
    expected = CurrentAccuracy(accuracy=25 / 50, clients=2, evaluated=2)
    assert straight.accuracy() == restarted.accuracy() == expected
    assert straight.reporters_of(2) == restarted.reporters_of(2) == {0, 1}


# --- what the running server needs ---


def test_the_newest_report_of_a_client_is_that_of_its_newest_round(tmp_path: Path) -> None:
    results = MetricsLog(tmp_path)
    assert results.newest_of(0) is None
    results.add(REPORTS[2])
    results.add(REPORTS[0])  # late
    assert results.newest_of(0) == REPORTS[2]


def test_the_accuracy_is_over_the_newest_evaluation_of_every_client_after_its_first_training(tmp_path: Path) -> None:
    results = MetricsLog(tmp_path)
    for entry in REPORTS[:2]:
        results.add(entry)
        assert results.accuracy() is None
    results.add(REPORTS[2])
    assert results.accuracy() == CurrentAccuracy(accuracy=8 / 10, clients=1, evaluated=1)
    results.add(REPORTS[3])
    assert results.accuracy() == CurrentAccuracy(accuracy=40 / 50, clients=2, evaluated=2)
    results.add(REPORTS[4])
    assert results.accuracy() == CurrentAccuracy(accuracy=(5 + 32) / 50, clients=2, evaluated=1)
    assert results.accuracy(completed_rounds=1) == CurrentAccuracy(accuracy=(5 + 32) / 50, clients=2, evaluated=1)


def test_a_late_joiner_counts_after_its_own_first_training(tmp_path: Path) -> None:
    results = MetricsLog(tmp_path)
    late, trained = report(2, 1, 0, 50), report(2, 2, 40, 50)
    for entry in (*REPORTS[:4], late):
        results.add(entry)
    assert (results.first_round_of(0), results.first_round_of(2), results.trained_rounds_of(0)) == (0, 1, 2)
    assert (results.counts(REPORTS[3]), results.counts(late)) == (True, False)
    assert results.accuracy() == CurrentAccuracy(accuracy=40 / 50, clients=2, evaluated=2)
    results.add(trained)
    assert results.counts(trained)
    assert results.accuracy() == CurrentAccuracy(accuracy=80 / 100, clients=3, evaluated=1)


# --- accuracy over clients ---


def accuracy_by_round(reports: Iterable[Report]) -> list[RoundAccuracy]:
    return Tally.over(reports).curve


def test_weighted_unweighted_and_deviation_by_hand() -> None:
    first, second, third = accuracy_by_round(REPORTS)
    assert (first.round, first.clients) == (0, 2)
    assert first.weighted == (1 + 30) / (10 + 40)
    assert first.unweighted == pytest.approx((0.1 + 0.75) / 2)
    assert first.deviation == pytest.approx((0.75 - 0.1) / 2)
    assert second.weighted == 40 / 50
    assert (second.unweighted, second.deviation) == pytest.approx((0.8, 0))
    assert (third.weighted, third.unweighted) == (0.5, 0.5)


def test_the_deviation_is_that_of_all_clients_not_of_a_sample() -> None:
    (point,) = accuracy_by_round([report(client, 0, correct, 10) for client, correct in enumerate((2, 4, 9))])
    mean = (0.2 + 0.4 + 0.9) / 3
    expected = math.sqrt(sum((accuracy - mean) ** 2 for accuracy in (0.2, 0.4, 0.9)) / 3)
    assert point.deviation == pytest.approx(expected)


def test_numbers_do_not_depend_on_the_order_of_reports_in_a_round() -> None:
    shuffled = [REPORTS[index] for index in (1, 0, 2, 3, 5, 4)]
    assert accuracy_by_round(shuffled) == accuracy_by_round(REPORTS)


# --- the summary ---


def client(client_id: int) -> Session:
    return Session(
        client_id=client_id,
        epoch=1,
        session_sha256=b"",
        data=pb.DataSummary(label_counts=[3, 0, 2], test_samples=10),
        capabilities=pb.Capabilities(architecture="cnn4", parameters=1234),
        last_seen=0.0,
    )


def summary(reports: list[Report], clients: list[Session], **changed: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "config": RunConfig(rounds=2, clients=2, seed=7),
        "run_id": "run-1",
        "phase": Phase.FINISHED,
        "reason": "all rounds are done",
        "completed_rounds": 2,
        "seconds": 12.5,
        "prototypes_sha256": "ab12",
        "began_with": 2,
    }
    return summarise(RunOutcome(sessions=clients, **{**usual, **changed}), reports)


def validated(client_id: int, number: int, correct: int, validation_correct: int) -> Report:
    made = report(client_id, number, correct, 10)
    made.metrics.accuracies[1].validation_correct = validation_correct
    made.metrics.validation_samples = 4
    return made


def test_the_round_is_chosen_on_validation_samples_and_judged_on_test_samples(tmp_path: Path) -> None:
    training = TrainingConfig(validation=0.2)
    reports = [
        validated(0, 0, correct=9, validation_correct=4),
        validated(0, 1, correct=9, validation_correct=2),
        validated(0, 2, correct=7, validation_correct=3),
    ]
    made = summary(reports, [client(0)], config=RunConfig(rounds=2, clients=1, training=training))["accuracy"]
    assert (made["best"]["round"], made["chosen"]["round"]) == (1, 2)
    assert (made["chosen"]["weighted"], made["chosen"]["validation"]) == (0.7, 0.75)
    MetricsLog(tmp_path).add(reports[2])
    (line,) = lines(tmp_path)
    assert (line["validation_samples"], line["validation_accuracies"]) == (4, {"head": 0.0, "prototype": 0.75})


def test_the_summary_by_hand(tmp_path: Path) -> None:
    made = summary(REPORTS, [client(0), client(1), client(2)])
    MetricsLog(tmp_path).write_summary(made)
    read = json.loads((tmp_path / "summary.json").read_text())
    assert read == made
    assert (read["method"], read["dataset"], read["clients"], read["rounds"], read["seed"]) == (
        "feddbp",
        "digits",
        2,
        2,
        7,
    )
    assert (read["outcome"], read["reason"], read["completed_rounds"]) == ("finished", "all rounds are done", 2)
    assert (read["bytes_up"], read["bytes_down"]) == (400, 28)
    assert (read["seconds"], read["prototypes_sha256"], read["run_id"]) == (12.5, "ab12", "run-1")
    best, last = read["accuracy"]["best"], read["accuracy"]["last"]
    assert (best["round"], best["weighted"], best["clients"]) == (1, 0.8, 2)
    assert (last["round"], last["weighted"], last["unweighted"]) == (2, 0.5, 0.5)
    assert last["std_over_clients"] == pytest.approx(0)
    assert [point["round"] for point in read["curve"]] == [0, 1, 2]
    assert read["per_client"] == [
        {
            "client": number,
            "name": "",
            "architecture": "cnn4",
            "parameters": 1234,
            "classes_held": 2,
            "train_samples": 5,
            "test_samples": 10,
            "accuracy": accuracy,
            "accuracy_round": None if accuracy is None else 2,
            "trained_rounds": 0 if accuracy is None else 3,
            "first_round": None if accuracy is None else 0,
            "last_round": None if accuracy is None else 2,
        }
        for number, accuracy in ((0, 0.5), (1, 0.5), (2, None))
    ]
    assert RunConfig.model_validate(read["config"]) == RunConfig(rounds=2, clients=2, seed=7)


def test_of_rounds_equally_good_the_first_after_training_is_the_best() -> None:
    made = summary([report(0, number, 5, 10) for number in range(3)], [client(0)])
    assert made["accuracy"]["best"]["round"] == 1


def test_a_client_that_left_counts_with_its_newest_evaluation() -> None:
    """One client with an easy test split reports on the last round, in which the others had no time to."""
    everybody = [report(number, at, 4 + at, 10) for at in range(3) for number in range(3)]
    made = summary([*everybody, report(0, 3, 10, 10)], [client(0)], config=RunConfig(rounds=9, clients=3))
    last, best = made["accuracy"]["last"], made["accuracy"]["best"]
    assert (last["round"], last["clients"], last["evaluated"]) == (3, 3, 1)
    assert last["weighted"] == (10 + 6 + 6) / 30
    assert best == last


def test_the_best_round_is_never_worse_than_the_last() -> None:
    few = [report(0, 0, 9, 10), report(0, 1, 10, 10)]
    all_of_them = [report(number, 2, 4, 10) for number in range(2)]
    made = summary([*few, *all_of_them, report(1, 3, 2, 10)], [client(0), client(1)])
    best, last = made["accuracy"]["best"], made["accuracy"]["last"]
    assert (best["round"], best["weighted"], best["clients"]) == (3, 0.3, 2)
    assert last == best
    assert [point["clients"] for point in made["curve"]] == [1, 1, 1, 2]


def test_a_summary_tells_the_rounds_of_a_late_joiner() -> None:
    reports = [*REPORTS, report(2, 1, 0, 10), report(2, 2, 9, 10)]
    made = summary(sorted(reports, key=lambda entry: entry.round), [client(0), client(2)])
    early, late = made["per_client"]
    assert (early["first_round"], early["last_round"], early["trained_rounds"]) == (0, 2, 3)
    assert (late["first_round"], late["last_round"], late["trained_rounds"]) == (1, 2, 2)
    assert (late["accuracy"], late["accuracy_round"]) == (0.9, 2)
    assert [point["clients"] for point in made["curve"]] == [2, 2, 3]


def test_a_run_without_results_has_a_summary_too() -> None:
    made = summary([], [], phase=Phase.FAILED, reason="no client joined", completed_rounds=0)
    assert made["accuracy"] == {"best": None, "last": None}
    assert (made["outcome"], made["curve"], made["per_client"]) == ("failed", [], [])
