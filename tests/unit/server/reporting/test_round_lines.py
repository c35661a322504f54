"""The line of a round: its number for people, who took part, how long it took, what is left."""

from __future__ import annotations

from typing import Any

import pytest
from run_machine import ids

from feddbp_common.evaluation import CurrentAccuracy
from feddbp_server.reporting.round_lines import ClosedRound, RoundLines


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lines(clock: Clock) -> RoundLines:
    return RoundLines(rounds=4, clients=3, clock=clock)


def closed(number: int, uploaded: frozenset[int], accuracy: CurrentAccuracy | None = None) -> ClosedRound:
    return ClosedRound(number=number, uploaded=uploaded, accuracy=accuracy)


def test_rounds_are_counted_from_one_and_the_last_evaluation_is_none(lines: RoundLines) -> None:
    assert [lines.name(number) for number in (0, 3, 4)] == ["round 1/4", "round 4/4", "the final evaluation"]
    assert lines.opened(0, ids(0, 1)) == "round 1/4 is open for 2 of 3 clients"


@pytest.mark.parametrize(
    ("finetune", "number", "text"),
    [
        ({"finetune_rounds": 2}, 2, "rounds 3 to 4: fine-tuning, without exchange"),
        ({"finetune_rounds": 1}, 3, "round 4: fine-tuning, without exchange"),
        (
            {"finetune_rounds": 2, "finetune_state": "last"},
            2,
            "rounds 3 to 4: fine-tuning, without exchange, with the state after round 2",
        ),
        ({"finetune_rounds": 2}, 1, None),
        ({"finetune_rounds": 2}, 3, None),
        ({}, 4, None),
    ],
)
def test_the_first_round_of_fine_tuning_says_so(
    finetune: dict[str, Any], number: int, text: str | None, clock: Clock
) -> None:
    assert RoundLines(rounds=4, clients=3, clock=clock, **finetune).finetuning(number) == text


def test_a_closed_round_says_who_uploaded_how_long_it_took_and_what_is_left(lines: RoundLines, clock: Clock) -> None:
    lines.opened(0, ids(0, 1, 2))
    clock.now += 20
    assert lines.closed(closed(0, ids(0, 1, 2))) == (
        "round 1/4: 3 of 3 clients uploaded, in 20 s; about 1 min 00 s left"
    )
    lines.opened(1, ids(0, 1, 2))
    clock.now += 40
    accuracy = CurrentAccuracy(accuracy=0.875, clients=3, evaluated=3)
    assert lines.closed(closed(1, ids(0, 2), accuracy)) == (
        "round 2/4: 2 of 3 clients uploaded, without client 1, in 40 s; "
        "accuracy after round 1: 87.5 % over 3 of 3 clients; about 1 min 00 s left"
    )
    lines.opened(2, ids(0, 1, 2))
    clock.now += 21
    assert lines.closed(closed(2, ids(0, 1, 2))).endswith("; about 21 s left")  # the median, not the mean


def test_a_closed_round_says_how_many_of_its_accuracies_are_older(lines: RoundLines) -> None:
    accuracy = CurrentAccuracy(accuracy=0.5, clients=3, evaluated=1)
    text = "round 4/4: 1 of 3 clients uploaded; accuracy after round 3: 50.0 % over 3 of 3 clients"
    assert lines.closed(closed(3, ids(0), accuracy)) == f"{text}, 2 of them in earlier rounds"


def test_clients_that_left_a_round_are_missing_in_it(lines: RoundLines) -> None:
    lines.opened(2, ids(0, 1, 2))
    assert lines.missing(closed(2, ids(1))) == ids(0, 2)


def test_nothing_is_left_after_the_last_round(lines: RoundLines, clock: Clock) -> None:
    lines.opened(3, ids(0, 1, 2))
    clock.now += 1
    assert lines.closed(closed(3, ids(0, 1, 2))) == "round 4/4: 3 of 3 clients uploaded, in 1.0 s"


def test_a_round_that_an_earlier_server_opened_has_no_duration(lines: RoundLines) -> None:
    lines.resumed(ids(0, 1))
    assert lines.closed(closed(1, ids(0))) == "round 2/4: 1 of 3 clients uploaded, without client 1"
