"""FINCH: clustering by first neighbours, which needs neither a number of clusters nor a threshold.

Written from the definition in the literature (Sarfraz et al., CVPR 2019).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.intp]
"""The cluster of each vector; clusters are numbered by their first member."""
Vectors = npt.NDArray[np.float64]


def finch(vectors: Vectors) -> list[Labels]:
    """Increasingly coarse partitions of at least two vectors by cosine distance.

    Each vector is linked to its nearest other; connected vectors form a cluster. The clusters' means are then clustered
    in turn. A step that leaves a single cluster is discarded, unless it is the first. It always terminates: no cluster
    stays alone, so each step at least halves their number.
    """
    partitions = [_join_first_neighbours(vectors)]
    while cluster_count(partitions[-1]) > 1:
        coarser = _join_first_neighbours(cluster_means(vectors, partitions[-1]))[partitions[-1]]
        if cluster_count(coarser) == 1:
            break
        partitions.append(coarser)
    return partitions


def coarsest_partition(vectors: Vectors) -> Labels:
    """The last partition with more than one cluster, or the single cluster if there is none."""
    if len(vectors) < 2:
        return np.zeros(len(vectors), dtype=np.intp)
    return finch(vectors)[-1]


def cluster_count(labels: Labels) -> int:
    return int(labels.max()) + 1


def cluster_means(vectors: Vectors, labels: Labels) -> Vectors:
    """Row j is the mean of the vectors in cluster j."""
    sums = np.zeros((cluster_count(labels), vectors.shape[1]), dtype=np.float64)
    np.add.at(sums, labels, vectors)
    means: Vectors = sums / np.bincount(labels)[:, None]
    return means


def _join_first_neighbours(vectors: Vectors) -> Labels:
    """Connected components of the graph that links every vector to its first neighbour.

    Two vectors with the same first neighbour are linked through it, so there is no need to link them to each other.
    """
    neighbours = _first_neighbours(vectors)
    labels = np.arange(len(vectors))
    while True:
        lower = np.minimum(labels, labels[neighbours])
        np.minimum.at(lower, neighbours, labels)
        if np.array_equal(lower, labels):
            break
        labels = lower
    # roots are the first members, so numbering them in ascending order numbers clusters by their first member
    numbered: Labels = np.unique(labels, return_inverse=True)[1]
    return numbered


def _first_neighbours(vectors: Vectors) -> Labels:
    """The nearest other vector by angle; among equals the first. A zero vector is orthogonal to all."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    directions = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    cosines = directions @ directions.T
    np.fill_diagonal(cosines, -np.inf)
    nearest: Labels = cosines.argmax(axis=1)
    return nearest
