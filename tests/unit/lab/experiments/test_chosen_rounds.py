"""The round of a result, and that intervals contain the chance of its choice."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from feddbp_lab.experiments.analysis.comparison import compare, compare_rare
from feddbp_lab.experiments.analysis.intervals import Interval, bootstrap_interval
from feddbp_lab.experiments.analysis.outcomes import CellResult, PointResult
from feddbp_lab.experiments.analysis.rounds import ClientCounts, Line, Moment, RuleResult
from feddbp_lab.results.protocol import Basis


def line(client: int, completed: int, *, test: float, validation: float) -> Line:
    """Of a client with ten samples of both kinds; its heads always have half of them."""
    return {
        "client": client,
        "round": completed,
        "trained": completed < 3,
        "test_samples": 10,
        "validation_samples": 10,
        "accuracies": {"head": 0.5, "prototype": test},
        "validation_accuracies": {"head": 0.5, "prototype": validation},
    }


# by client, of rounds 1, 2 and 3: the first client chooses the first round, the second client the second one
TEST = {0: (0.9, 0.1, 0.5), 1: (0.7, 0.3, 0.5)}
VALIDATION = {0: (1.0, 0.4, 0.0), 1: (0.4, 0.9, 0.0)}


def rule_result(rule: str = "prototype", basis: Basis = Basis.VALIDATION) -> RuleResult:
    lines = [line(client, 0, test=0.0, validation=0.0) for client in TEST]
    for number in (1, 2, 3):
        lines += [
            line(client, number, test=TEST[client][number - 1], validation=VALIDATION[client][number - 1])
            for client in TEST
        ]
    return RuleResult.of(rule, lines, basis, exchanged_round=2)


def result(inference: str, *, seeds: int = 1, rare: Mapping[int, float] | None = None) -> PointResult:
    correct = rare or {}
    cell = CellResult(
        options={},
        images=40,
        inference=inference,
        basis=Basis.VALIDATION,
        expected_clients=2,
        rules={rule: rule_result(rule) for rule in ("head", "prototype")},
        rare=ClientCounts(samples=dict.fromkeys(correct, 10), correct=correct),
        core_minutes=None,
        megabytes=None,
        parameters=None,
    )
    return PointResult(seeds=seeds, failed=0, by_seed=dict.fromkeys(range(seeds), cell))


def bounds(interval: Interval | None) -> tuple[float, float]:
    assert interval is not None
    return interval.low, interval.high


def test_the_round_is_chosen_again_for_the_clients_of_every_draw() -> None:
    candidates = rule_result().candidates
    assert candidates.clients == (0, 1)
    # both clients together choose the first round, as does the first one; the second one alone has the second round
    draws = np.array([[1.0, 1.0], [2.0, 0.0], [0.0, 2.0]])
    assert candidates.values(draws) == pytest.approx([80, 90, 30])
    assert bounds(bootstrap_interval([candidates])) == pytest.approx((30, 90))


@pytest.mark.parametrize(("basis", "expected"), [(Basis.BEST, [80, 90, 70]), (Basis.LAST, [50, 50, 50])])
def test_rounds_that_are_not_chosen_on_validation_samples(basis: Basis, expected: list[float]) -> None:
    values = rule_result(basis=basis).candidates.values(np.array([[1.0, 1.0], [2.0, 0.0], [0.0, 2.0]]))
    assert values == pytest.approx(expected)


def test_the_first_of_equal_rounds_is_chosen() -> None:
    assert rule_result("head").reported.round == 1


def test_candidates_may_be_restricted_to_some_clients() -> None:
    candidates = rule_result().candidates.among({1})
    assert candidates.clients == (1,)
    assert candidates.values(np.array([[1.0]])) == pytest.approx([30])


def test_the_interval_of_a_difference_contains_the_choice_of_the_round() -> None:
    chosen = compare(result("prototype"), result("head"))
    assert chosen is not None
    assert (chosen.mean, *bounds(chosen.interval)) == pytest.approx((30, -20, 40))
    last = compare(result("prototype"), result("head"), moment=Moment.LAST)
    assert last is not None
    assert (last.mean, *bounds(last.interval)) == (0, 0, 0)
    before = compare(result("prototype"), result("head"), moment=Moment.EXCHANGED)
    assert before is not None
    assert before.mean == pytest.approx(-30)


def test_seeds_choose_their_rounds_one_by_one() -> None:
    one, two = (compare(result("prototype", seeds=seeds), result("head", seeds=seeds)) for seeds in (1, 2))
    assert one is not None
    assert two is not None
    assert two.mean == one.mean
    # a seed alone is at its limits with one draw in four, both of two seeds with one in sixteen: all are above 2.5 %
    assert bounds(two.interval) == pytest.approx(bounds(one.interval))
    assert not two.is_beyond_chance


def test_a_difference_on_rare_classes_takes_the_rounds_as_they_were_chosen() -> None:
    ours, theirs = result("prototype", rare={0: 6, 1: 6}), result("head", rare={0: 4, 1: 4})
    difference = compare_rare(ours, theirs)
    assert difference is not None
    assert (difference.mean, *bounds(difference.interval)) == pytest.approx((20, 20, 20))


def test_a_difference_over_a_single_seed_is_never_beyond_chance() -> None:
    difference = compare(result("prototype"), result("head"), moment=Moment.EXCHANGED)
    assert difference is not None
    assert difference.interval is not None
    assert difference.interval.excludes_zero
    assert not difference.is_beyond_chance


def test_the_rule_of_either_side_may_be_named() -> None:
    own = compare(result("head"), result("prototype"), "head")
    same = compare(result("head"), result("prototype"), "head", their_rule="head")
    assert own is not None
    assert same is not None
    assert own.mean == pytest.approx(-30)
    assert same.mean == 0
    assert compare(result("head"), result("prototype"), "head", their_rule="guide") is None
