"""A sample changes the released table by at most its sensitivity, and every entry gets noise."""

from __future__ import annotations

import random

import numpy as np
import pytest

from feddbp_common.differential_privacy.mechanism import (
    COUNT_UNITS,
    SENSITIVITY_SQUARED,
    SUM_UNITS,
    Release,
    deviation_of_counts,
    deviation_of_sums,
    exact_table,
    variance_of,
    with_noise,
)

LABELS = np.array([0, 2, 2, 1], dtype=np.int64)


def squared_change(sample: list[float], *, clip: float = 1.0) -> int:
    """Of the table, by one more sample."""
    features = np.random.default_rng(0).normal(size=(5, len(sample))).astype(np.float32)
    features[4] = sample
    labels = np.append(LABELS, 2)
    with_it = exact_table(features, labels, clip=clip, classes=4)
    without = exact_table(features[:4], LABELS, clip=clip, classes=4)
    change = with_it - without
    assert not change[[0, 1, 3]].any()
    return int((change.astype(object) ** 2).sum())


@pytest.mark.parametrize(
    "sample",
    [
        [0.0, 0.0, 0.0],
        [1.0, 0.0, 0.0],
        [-3e38, 3e38, 3e38],
        [float("nan"), 1.0, 0.0],
        [float("inf"), float("-inf"), 1e-40],
        [0.57735026919, 0.57735026919, 0.57735026919],
        [0.6, -0.8, 1e-7],
    ],
)
@pytest.mark.parametrize("clip", [1.0, 1e-3, 1e6])
def test_one_sample_more_changes_one_row_by_no_more_than_the_sensitivity(sample: list[float], clip: float) -> None:
    assert COUNT_UNITS**2 <= squared_change(sample, clip=clip) <= SENSITIVITY_SQUARED


def test_random_samples_do_not_exceed_the_sensitivity() -> None:
    draws = np.random.default_rng(1).normal(size=(200, 7)) * np.random.default_rng(2).lognormal(0, 3, size=(200, 1))
    changes = [squared_change(draw.tolist()) for draw in draws]
    assert max(changes) <= SENSITIVITY_SQUARED
    assert max(changes) > 0.999 * SENSITIVITY_SQUARED


def test_without_noise_a_release_is_the_sums_and_counts() -> None:
    features = np.array([[0.5, 0.0], [0.0, -0.25], [3.0, 4.0], [0.0, 0.0]], dtype=np.float32)
    release = Release.of(exact_table(features, LABELS, clip=1.0, classes=4))
    assert release.counts.tolist() == [1, 1, 2, 0]
    np.testing.assert_allclose(release.sums, np.array([[0.5, 0], [0, 0], [0.6, 0.55], [0, 0]]), atol=2 / SUM_UNITS)


def test_noise_is_on_every_entry_also_of_absent_classes() -> None:
    table = np.zeros((5, 200), dtype=np.int64)
    noisy = with_noise(table, variance_of(2.0), random.Random(0).randrange)
    assert (noisy != 0).all()
    release = Release.of(noisy)
    assert release.sums.std() == pytest.approx(deviation_of_sums(2.0), rel=0.1)
    assert deviation_of_counts(2.0) == 2 * deviation_of_sums(2.0)


def test_shares_of_noise_add_up_to_the_whole() -> None:
    whole = variance_of(1.5)
    assert whole <= 20 * variance_of(1.5, clients=20) < whole + 20
