"""Maps of classes: prototypes projected to a plane in which all rounds share one basis, and their similarities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from feddbp_common.wire import PrototypeSet

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassMap:
    """Positions of classes after every round that was kept.

    The basis is the first two principal components of the newest round's directions, and every round is projected onto
    it: a class that does not move in the feature space does not move on the map.
    """

    class_ids: npt.NDArray[np.int32]
    rounds: list[int]
    positions: Matrix
    """[rounds, classes, 2]; NaN where a class had no prototype yet."""
    explained: float
    """Share of the newest round's variance that the plane shows."""


def class_map(snapshots: Mapping[int, PrototypeSet], previous: ClassMap | None = None) -> ClassMap | None:
    """None without prototypes of at least two classes. The map is rotated onto `previous`, which a reader may be at."""
    usable = {number: found for number, found in sorted(snapshots.items()) if len(found) >= 2}
    if not usable:
        return None
    newest = max(usable)
    directions = _directions(usable[newest])
    centre = directions.mean(axis=0)
    _, weights, components = np.linalg.svd(directions - centre, full_matrices=False)
    basis = components[:2].T
    # the sign of a component is arbitrary: its largest coordinate is made positive
    basis = basis * np.sign(basis[np.abs(basis).argmax(axis=0), np.arange(basis.shape[1])])
    if basis.shape[1] < 2:
        basis = np.pad(basis, ((0, 0), (0, 2 - basis.shape[1])))
    class_ids = usable[newest].class_ids
    positions = np.full((len(usable), len(class_ids), 2), np.nan)
    for row, found in enumerate(usable.values()):
        if found.vectors.shape[1] != len(centre):
            continue
        _, mine, theirs = np.intersect1d(class_ids, found.class_ids, return_indices=True)
        positions[row, mine] = (_directions(found)[theirs] - centre) @ basis
    variance = weights**2
    explained = float(variance[:2].sum() / variance.sum()) if variance.sum() else 0.0
    made = ClassMap(class_ids=class_ids, rounds=list(usable), positions=positions, explained=explained)
    return made if previous is None else _aligned(made, previous)


def similarities(prototypes: PrototypeSet) -> Matrix:
    """Cosines between all pairs of classes."""
    directions = _directions(prototypes)
    return np.clip(directions @ directions.T, -1.0, 1.0)


def _aligned(made: ClassMap, previous: ClassMap) -> ClassMap:
    """Rotated or reflected (orthogonal Procrustes) so that the rounds in both maps lie as they did."""
    common = [number for number in made.rounds if number in previous.rounds]
    if not common or not np.array_equal(made.class_ids, previous.class_ids):
        return made
    now = made.positions[[made.rounds.index(number) for number in common]].reshape(-1, 2)
    before = previous.positions[[previous.rounds.index(number) for number in common]].reshape(-1, 2)
    known = np.isfinite(now).all(axis=1) & np.isfinite(before).all(axis=1)
    left, _, right = np.linalg.svd(now[known].T @ before[known])
    turned = made.positions @ (left @ right)
    return ClassMap(class_ids=made.class_ids, rounds=made.rounds, positions=turned, explained=made.explained)


def _directions(prototypes: PrototypeSet) -> Matrix:
    """Rows of unit length: inference compares directions, and lengths grow with training."""
    vectors = prototypes.vectors.astype(np.float64)
    made: Matrix = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return made
