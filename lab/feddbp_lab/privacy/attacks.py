"""Attacks on class means: whether a sample is among those that a mean was taken of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float64]
"""[n, d]."""
Mean = npt.NDArray[np.float64]
"""[d]."""

_RIDGE = 1e-3
"""Added to the covariance, as a share of its mean eigenvalue: the attacker has fewer samples than channels."""


@dataclass(frozen=True)
class Reference:
    """What the attacker knows of features in general, from samples that no client trained with."""

    mean: npt.NDArray[np.float64]
    axes: npt.NDArray[np.float64]
    """Directions in which features vary independently within classes, as columns, [d, d]."""
    variances: npt.NDArray[np.float64]
    """Of features along each of them, [d]."""
    class_means: dict[int, npt.NDArray[np.float64]]

    @classmethod
    def of(cls, features: Rows, labels: npt.NDArray[np.int64]) -> Reference:
        class_means = {int(label): features[labels == label].mean(axis=0) for label in np.unique(labels)}
        centred = features - np.stack([class_means[int(label)] for label in labels])
        covariance = centred.T @ centred / max(1, len(features) - len(class_means))
        variances, axes = np.linalg.eigh(covariance)
        ridge = _RIDGE * float(variances.mean()) + np.finfo(float).tiny
        return cls(features.mean(axis=0), axes, np.maximum(variances, 0.0) + ridge, class_means)

    def scores(
        self, candidates: Rows, prototype: Mean, label: int, *, weight: float, noise: float = 0.0
    ) -> npt.NDArray[np.float64]:
        """How much likelier the prototype is if it contains the candidate with this weight, 1/n in a mean of n samples.

        The logarithm of the likelihood ratio of Gaussian features, up to its scale: the whitened inner product of
        candidate and prototype, less the weighted half of the candidate's own length. `noise` is the variance of noise
        on each channel of the prototype.
        """
        centre = self.class_means.get(label, self.mean)
        away = (candidates - centre) @ self.axes
        # the covariance of a mean and its noise, up to the weight of a sample
        whitened = away / (self.variances + noise / weight)
        towards = (prototype - centre) @ self.axes
        scores: npt.NDArray[np.float64] = whitened @ towards - weight / 2 * (whitened * away).sum(axis=1)
        return scores


def auc(positives: npt.NDArray[np.float64], negatives: npt.NDArray[np.float64]) -> float:
    """How often a member scores higher than a non-member, ties as half: 0.5 is guessing, 1 is certainty."""
    both = np.concatenate([positives, negatives])
    _, inverse, counts = np.unique(both, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    above = ranks[: len(positives)].sum() - len(positives) * (len(positives) + 1) / 2
    return float(above / (len(positives) * len(negatives)))


def total_variation(found: npt.NDArray[np.float64], true: npt.NDArray[np.float64]) -> float:
    """Distance of two distributions of labels: 0 if the attacker has it right, at most 1."""
    return float(np.abs(found / max(found.sum(), 1e-300) - true / true.sum()).sum() / 2)
