"""The definition of a run's accuracy: which evaluations count, and in what words it is told."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from feddbp_common.evaluation import (
    RoundAccuracy,
    SampleCounts,
    accuracy_over_clients,
    best_round,
    counted_by_round,
)


@dataclass(frozen=True)
class Evaluated:
    client_id: int
    round: int
    test_samples: int = 10
    has_trained: bool = True


def counted(*evaluations: Evaluated) -> dict[int, dict[int, int]]:
    """By round: the round of the evaluation that counts, by client."""
    return {
        number: {client: evaluation.round for client, evaluation in by_client.items()}
        for number, by_client in counted_by_round(evaluations)
    }


def test_what_is_measured_before_the_first_round_counts_until_a_client_has_trained() -> None:
    assert counted(Evaluated(0, 0), Evaluated(1, 0), Evaluated(1, 1)) == {0: {0: 0, 1: 0}, 1: {1: 1}}


def test_a_client_that_misses_a_round_counts_with_its_newest_evaluation() -> None:
    found = counted(Evaluated(0, 0), Evaluated(1, 0), Evaluated(0, 1), Evaluated(1, 1), Evaluated(1, 2))
    assert found[2] == {0: 1, 1: 2}


def test_a_late_joiner_counts_once_it_has_trained() -> None:
    found = counted(Evaluated(0, 0), Evaluated(0, 1), Evaluated(1, 1), Evaluated(0, 2), Evaluated(1, 2))
    assert (found[1], found[2]) == ({0: 1}, {0: 2, 1: 2})


def test_a_client_that_was_never_selected_does_not_count() -> None:
    observer = [Evaluated(1, number, has_trained=False) for number in range(3)]
    trainer = [Evaluated(0, number) for number in range(3)]
    ordered = sorted([*observer, *trainer], key=lambda evaluation: evaluation.round)
    assert counted(*ordered)[2] == {0: 2}


def test_a_client_without_test_samples_does_not_count() -> None:
    assert counted(Evaluated(0, 0, 0), Evaluated(1, 0), Evaluated(0, 1, 0), Evaluated(1, 1)) == {0: {1: 0}, 1: {1: 1}}


def point(number: int, accuracy: float, clients: int) -> RoundAccuracy:
    counts = [SampleCounts(correct=round(10 * accuracy), samples=10)] * clients
    return RoundAccuracy.over(number, counts, evaluated=clients)


def test_the_best_round_is_one_over_most_clients_after_training() -> None:
    points = [point(0, 1.0, 3), point(1, 0.9, 2), point(2, 0.6, 3), point(3, 0.5, 3)]
    best = best_round(points, lambda found: found.weighted)
    assert best == points[2]
    assert best_round(points[:1], lambda found: found.weighted) == points[0]
    assert best_round([], lambda found: 0.0) is None


def test_a_point_of_an_earlier_version_is_over_those_who_evaluated() -> None:
    old = {"round": 2, "weighted": 0.7, "unweighted": 0.6, "std_over_clients": 0.1, "clients": 3}
    read = RoundAccuracy.from_dict(old)
    assert (read.clients, read.evaluated, read.validation) == (3, 3, None)
    assert read.as_dict() == {**old, "evaluated": 3}


@pytest.mark.parametrize(
    ("accuracy", "count", "clients", "evaluated", "text"),
    [
        (None, 0, 8, None, "–"),
        (0.9714, 8, 8, None, "97.1 % over 8 of 8 clients"),
        (1.0, 1, 1, 1, "100.0 % over 1 of 1 client"),
        (0.5, 7, 8, 5, "50.0 % over 7 of 8 clients, 2 of them in earlier rounds"),
    ],
)
def test_an_accuracy_says_over_how_many_clients_it_is(
    accuracy: float | None, count: int, clients: int, evaluated: int | None, text: str
) -> None:
    assert accuracy_over_clients(accuracy, count, clients, evaluated=evaluated) == text
