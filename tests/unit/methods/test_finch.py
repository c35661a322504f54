"""Clustering by first neighbours, on vectors with obvious clusters and against a slow reference."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feddbp_server.strategies.finch import Labels, Vectors, cluster_count, cluster_means, coarsest_partition, finch


def at_angles(*degrees: float) -> Vectors:
    """Unit vectors of the plane."""
    return np.array([[math.cos(math.radians(angle)), math.sin(math.radians(angle))] for angle in degrees])


def random_vectors(count: int, seed: int, width: int = 4) -> Vectors:
    return np.random.default_rng(seed).standard_normal((count, width))


def groups(labels: Labels) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(labels == cluster).tolist()) for cluster in range(cluster_count(labels))}


@given(count=st.integers(2, 3), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=30)
def test_two_or_three_vectors_are_one_cluster(count: int, seed: int) -> None:
    assert coarsest_partition(random_vectors(count, seed)).tolist() == [0] * count


def test_a_single_vector_is_its_own_cluster() -> None:
    assert coarsest_partition(random_vectors(1, 0)).tolist() == [0]


def test_two_groups_far_apart_in_angle_are_two_clusters() -> None:
    assert coarsest_partition(at_angles(0, 90, 2, 91, 5, 94)).tolist() == [0, 1, 0, 1, 0, 1]


def test_two_pairs_stay_two_clusters_instead_of_merging_into_one() -> None:
    assert [cluster_count(labels) for labels in finch(at_angles(0, 1, 90, 91))] == [2]


def test_clusters_are_clustered_in_turn_until_one_would_be_left() -> None:
    pairs = at_angles(0, 1, 10, 11, 90, 91, 100, 101)
    assert [labels.tolist() for labels in finch(pairs)] == [[0, 0, 1, 1, 2, 2, 3, 3], [0, 0, 0, 0, 1, 1, 1, 1]]


def test_vectors_that_share_a_nearest_neighbour_are_in_one_cluster() -> None:
    # 0 and 8 are both nearest to 3; 100 and 101 are nearest to each other
    assert groups(finch(at_angles(0, 8, 3, 100, 101))[0]) == {frozenset({0, 1, 2}), frozenset({3, 4})}


def test_a_chain_of_neighbours_is_one_cluster() -> None:
    assert groups(finch(at_angles(0, 1, 3, 6, 10, 100, 101))[0]) == {frozenset(range(5)), frozenset({5, 6})}


def test_lengths_do_not_change_the_neighbours() -> None:
    vectors = at_angles(0, 90, 2, 91, 5, 94) * np.array([[1], [100], [50], [0.1], [3], [7]])
    assert finch(vectors)[0].tolist() == [0, 1, 0, 1, 0, 1]


def test_means_of_clusters_are_those_of_all_their_members() -> None:
    # as lengths differ, the mean of {0, 1} has another direction than the mean of their directions
    vectors = np.array([[9.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    assert cluster_means(vectors, np.array([0, 0, 1])).tolist() == [[4.5, 0.5], [1.0, 1.0]]


@pytest.mark.parametrize("vectors", [np.ones((6, 3)), np.zeros((5, 3)), np.vstack([np.zeros((1, 2)), at_angles(0, 3)])])
def test_equal_and_zero_vectors_are_clustered(vectors: Vectors) -> None:
    assert coarsest_partition(vectors).tolist() == [0] * len(vectors)


def test_clusters_are_numbered_by_their_first_member() -> None:
    labels = coarsest_partition(at_angles(90, 0, 91, 1, 94, 5))
    assert labels.tolist() == [0, 1, 0, 1, 0, 1]


# --- against a reference that follows the definition


def reference_step(vectors: list[list[float]]) -> list[set[int]]:
    """Components of the graph with all three kinds of links, by search."""

    def cosine(a: list[float], b: list[float]) -> float:
        lengths = math.sqrt(sum(x * x for x in a) * sum(x * x for x in b))
        return sum(x * y for x, y in zip(a, b, strict=True)) / lengths

    count = len(vectors)
    nearest = [
        max((j for j in range(count) if j != i), key=lambda j, i=i: cosine(vectors[i], vectors[j]))  # type: ignore[misc]
        for i in range(count)
    ]
    components: list[set[int]] = []
    unseen = set(range(count))
    while unseen:
        component, frontier = set(), [min(unseen)]
        while frontier:
            i = frontier.pop()
            component.add(i)
            linked = {
                j for j in range(count) if nearest[i] == j or nearest[j] == i or (nearest[i] == nearest[j] and i != j)
            }
            frontier.extend(linked - component)
        components.append(component)
        unseen -= component
    return components


def reference_finch(vectors: list[list[float]]) -> list[list[set[int]]]:
    """All partitions; a step to one cluster or without fewer clusters is discarded, one cluster fewer is the last."""

    def mean(members: set[int]) -> list[float]:
        return [sum(vectors[i][k] for i in members) / len(members) for k in range(len(vectors[0]))]

    partitions = [reference_step(vectors)]
    while len(partitions[-1]) > 1:
        before = partitions[-1]
        merged = [set().union(*(before[i] for i in step)) for step in reference_step([mean(c) for c in before])]
        if len(merged) == 1 or len(merged) >= len(before):
            break
        partitions.append(merged)
        if len(before) - len(merged) == 1:
            break
    return partitions


@given(count=st.integers(2, 24), seed=st.integers(0, 2**32 - 1), width=st.integers(2, 6))
@settings(max_examples=60, deadline=None)
def test_partitions_agree_with_the_definition(count: int, seed: int, width: int) -> None:
    vectors = random_vectors(count, seed, width)
    found = [groups(labels) for labels in finch(vectors)]
    expected = [{frozenset(c) for c in partition} for partition in reference_finch(vectors.tolist())]
    assert found == expected


@given(count=st.integers(2, 24), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_every_partition_has_at_most_half_as_many_clusters_as_the_one_before(count: int, seed: int) -> None:
    sizes = [count, *(cluster_count(labels) for labels in finch(random_vectors(count, seed)))]
    assert all(2 * after <= before for before, after in itertools.pairwise(sizes))


@given(data=st.data(), count=st.integers(2, 16), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_the_order_of_vectors_does_not_matter(data: st.DataObject, count: int, seed: int) -> None:
    vectors = random_vectors(count, seed)
    order = np.array(data.draw(st.permutations(range(count))))
    reordered = {frozenset(order[list(group)].tolist()) for group in groups(coarsest_partition(vectors[order]))}
    assert reordered == groups(coarsest_partition(vectors))
