"""The map of classes: one basis for all rounds, and the same orientation when it grows."""

from __future__ import annotations

import numpy as np
import pytest

from feddbp_common.wire import PrototypeSet
from feddbp_lab.results.class_map import class_map, similarities

CLASSES, WIDTH = 6, 16


def prototypes(seed: int, *, drift: float = 0.0, classes: int = CLASSES) -> PrototypeSet:
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(CLASSES, WIDTH)) + drift * np.random.default_rng(99).normal(size=(CLASSES, WIDTH))
    return PrototypeSet(class_ids=np.arange(classes, dtype=np.int32), vectors=vectors[:classes].astype(np.float32))


def test_classes_that_do_not_move_stay_where_they_are() -> None:
    made = class_map({1: prototypes(0), 5: prototypes(0)})
    assert made is not None
    assert made.rounds == [1, 5]
    assert made.positions[0] == pytest.approx(made.positions[1])
    assert 0 < made.explained <= 1


def test_a_class_that_appears_later_has_no_position_before() -> None:
    made = class_map({1: prototypes(0, classes=4), 2: prototypes(0)})
    assert made is not None
    assert np.isnan(made.positions[0, 4:]).all()
    assert np.isfinite(made.positions[1]).all()


def test_a_new_round_turns_the_map_as_little_as_it_can() -> None:
    rounds = {1: prototypes(0, drift=0.1), 2: prototypes(0, drift=0.5)}
    before = class_map(rounds)
    assert before is not None
    after = class_map({**rounds, 3: prototypes(0, drift=0.55)}, before)
    assert after is not None
    moved = np.abs(after.positions[:2] - before.positions).max()
    assert moved < 0.15 * np.abs(before.positions).max()


@pytest.mark.parametrize("snapshots", [{}, {1: prototypes(0, classes=1)}], ids=["none", "one class"])
def test_too_little_for_a_map_gives_none(snapshots: dict[int, PrototypeSet]) -> None:
    assert class_map(snapshots) is None


def test_two_classes_lie_on_a_line() -> None:
    made = class_map({1: prototypes(0, classes=2)})
    assert made is not None
    assert made.positions[0, :, 1] == pytest.approx([0, 0], abs=1e-6)


def test_similarities_are_cosines() -> None:
    found = similarities(prototypes(0))
    assert found.shape == (CLASSES, CLASSES)
    assert np.diag(found) == pytest.approx(np.ones(CLASSES))
    assert found == pytest.approx(found.T)
