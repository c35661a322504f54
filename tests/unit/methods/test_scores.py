"""Scores and the predictions made of them."""

from __future__ import annotations

import math

import pytest
import torch

from feddbp_client.methods.received import ClassTable
from feddbp_client.methods.scores import NO_CLASS, ScoreKind, Scores

TABLE = ClassTable(torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 10.0]]), torch.tensor([False, True, True]))
NEARNESS = (ScoreKind.DISTANCE, ScoreKind.SQUARED_DISTANCE)


def test_the_greatest_score_is_the_prediction_and_ties_go_to_the_lower_id() -> None:
    scores = Scores.of_logits(torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.1, 0.5], [-3.0, -2.0, -2.0]]))
    assert scores.classes().tolist() == [1, 0, 1]


def test_squared_distances_are_negated() -> None:
    z = torch.tensor([[3.0, 5.0]])
    scores = Scores.of_nearness(z, TABLE, classes=3, kind=ScoreKind.SQUARED_DISTANCE)
    assert scores.values.tolist() == [[-math.inf, -1.0, -34.0]]


def test_distances_are_between_directions() -> None:
    z = torch.tensor([[0.0, 0.001]])
    scores = Scores.of_nearness(z, TABLE, classes=3, kind=ScoreKind.DISTANCE)
    assert scores.classes().tolist() == [2]
    assert scores.values[0].tolist() == pytest.approx([-math.inf, -math.sqrt(0.4), 0.0], abs=1e-6)


@pytest.mark.parametrize("kind", NEARNESS)
def test_a_class_without_prototype_is_never_the_nearest(kind: ScoreKind) -> None:
    # the row of class 0 is zero: the nearest, but unknown
    scores = Scores.of_nearness(torch.zeros(2, 2), TABLE, classes=3, kind=kind)
    assert (scores.classes() > 0).all()


@pytest.mark.parametrize("kind", NEARNESS)
def test_without_prototypes_there_is_no_prediction(kind: ScoreKind) -> None:
    scores = Scores.of_nearness(torch.zeros(2, 2), None, classes=3, kind=kind)
    assert scores.values.shape == (2, 3)
    assert scores.classes().tolist() == [NO_CLASS, NO_CLASS]


def test_a_nan_score_gives_a_class_and_not_no_class() -> None:
    assert Scores.of_logits(torch.tensor([[0.0, math.nan, 1.0]])).classes().tolist() == [1]
