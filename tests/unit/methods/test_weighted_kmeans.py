"""Weighted K-means: small cases with known results, and general properties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from feddbp_server.strategies import weighted_kmeans as module
from feddbp_server.strategies.weighted_kmeans import weighted_kmeans


class GivenStart(np.random.Generator):
    """A generator that draws the given rows."""

    def __init__(self, *rows: int) -> None:
        super().__init__(np.random.PCG64(0))
        self._rows = rows

    def choice(self, *_: Any, **__: Any) -> Any:
        return np.array(self._rows)


def cluster(rows: Any, weights: Any = None, *, clusters: int, random: Any = None, iterations: int = 25) -> Any:
    rows = np.array(rows, dtype=np.float32)
    weights = np.ones(len(rows)) if weights is None else np.array(weights, dtype=np.float64)
    random = np.random.default_rng(0) if random is None else random
    return weighted_kmeans(rows, weights, clusters=clusters, iterations=iterations, random=random)


def test_one_cluster_is_the_weighted_mean() -> None:
    found = cluster([[0, 0], [4, 0], [0, 8]], [2, 1, 1], clusters=1)
    np.testing.assert_allclose(found, [[1, 2]])


def test_two_groups_far_apart_are_found_from_any_start() -> None:
    rows = [[0, 0], [0, 2], [100, 0], [100, 4]]
    for first in [(0, 1), (2, 3), (0, 3), (3, 1)]:
        found = cluster(rows, [1, 3, 1, 1], clusters=2, random=GivenStart(*first))
        np.testing.assert_allclose(sorted(found.tolist()), [[0.0, 1.5], [100.0, 2.0]])


def test_as_many_clusters_as_rows_keep_every_row() -> None:
    rows = [[0, 1], [5, 5], [-3, 2]]
    assert sorted(cluster(rows, [1, 10, 1], clusters=3).tolist()) == sorted(rows)


def test_a_step_assigns_to_the_nearest_and_moves_to_the_mean() -> None:
    # from 0 and 10: the rows 1 and 4 go to 0, the row 6 to 10
    found = cluster([[0], [1], [4], [6], [10]], [1, 1, 2, 1, 1], clusters=2, random=GivenStart(0, 4), iterations=1)
    np.testing.assert_allclose(found, [[(0 + 1 + 2 * 4) / 4], [8.0]])


def test_iterations_end_when_nothing_changes() -> None:
    # after the step above the centroids are 2.25 and 8; 6 stays with 8 and 4 with 2.25
    rows, weights = [[0], [1], [4], [6], [10]], [1, 1, 2, 1, 1]
    once, long = (cluster(rows, weights, clusters=2, random=GivenStart(0, 4), iterations=n) for n in (1, 1000))
    np.testing.assert_array_equal(once, long)


def test_an_empty_cluster_restarts_at_the_row_with_the_largest_cost() -> None:
    # both start at the same row, so the second is empty; the row 9 is farther away, but the heavy row 5 costs more
    found = cluster([[0], [0], [5], [9]], [1, 1, 10, 1], clusters=2, random=GivenStart(0, 1), iterations=1)
    np.testing.assert_allclose(found, [[9 / 3], [5.0]])


def test_several_empty_clusters_take_different_rows() -> None:
    rows = [[0], [0], [0], [7], [9]]
    found = cluster(rows, clusters=3, random=GivenStart(0, 1, 2))
    assert sorted(found.ravel().tolist()) == [0, 7, 9]


def test_rows_that_are_all_the_same_leave_every_centroid_there() -> None:
    np.testing.assert_array_equal(cluster([[1, 2]] * 5, clusters=3), [[1, 2]] * 3)


def test_rows_are_drawn_by_weight_at_the_start() -> None:
    # the middle row is assigned to the nearer of the two rows that were drawn, which shows in the result
    rows, light = [[0], [10], [11]], [1e-6, 1, 1]
    found = [cluster(rows, light, clusters=2, random=np.random.default_rng(seed), iterations=1) for seed in range(20)]
    assert all(centroids.min() > 9 for centroids in found)
    even = [cluster(rows, clusters=2, random=np.random.default_rng(seed), iterations=1) for seed in range(20)]
    assert any(centroids.min() < 9 for centroids in even)


@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 15), clusters=st.integers(1, 15), seed=st.integers(0, 10**6))
def test_every_final_centroid_is_the_mean_of_its_nearest_rows(count: int, clusters: int, seed: int) -> None:
    assume(clusters <= count)
    random = np.random.default_rng(seed)
    rows = random.standard_normal((count, 3)).astype(np.float32)
    weights = random.uniform(0.1, 5.0, count)
    found = weighted_kmeans(rows, weights, clusters=clusters, iterations=1000, random=random)
    nearest = [min(range(clusters), key=lambda k: float(np.square(row - found[k]).sum())) for row in rows]
    for k, centroid in enumerate(found):
        own = [i for i in range(count) if nearest[i] == k]
        assert own
        mean = sum(weights[i] * rows[i].astype(float) for i in own) / sum(weights[i] for i in own)
        np.testing.assert_allclose(centroid, mean, atol=1e-9)


def test_blocks_give_the_same_as_all_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(1).standard_normal((50, 4))
    whole = cluster(rows, clusters=5)
    monkeypatch.setattr(module, "_BLOCK", 7)
    np.testing.assert_allclose(cluster(rows, clusters=5), whole, rtol=1e-12)


def test_the_same_generator_gives_the_same_bits() -> None:
    rows = np.random.default_rng(1).standard_normal((40, 6))
    one, other = (cluster(rows, clusters=4, random=np.random.default_rng(7)) for _ in range(2))
    assert one.tobytes() == other.tobytes()
