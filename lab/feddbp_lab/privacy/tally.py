"""Attacks of one kind: the share of pairs that the attacker tells apart, and how far chance may have moved it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from feddbp_lab.privacy.attacks import auc

Prototype = tuple[int, int]
"""By client and class."""
_Z: Final = 1.96
"""Of a normal distribution, 95 % is within so many deviations."""
_HALVINGS: Final = 50


class Interval(NamedTuple):
    low: float
    high: float


@dataclass
class Attacked:
    """A prototype, as it was attacked with its members and others; several times if it has noise."""

    members: int
    others: int
    aucs: list[float] = field(default_factory=list)

    @property
    def pairs(self) -> int:
        return self.members * self.others * len(self.aucs)

    @property
    def auc(self) -> float:
        return float(np.mean(self.aucs))

    def variance(self, expected: float) -> float:
        """Of an AUC with this expectation over other images, after Hanley and McNeil (1982).

        Attacks with other noise are on the same images, so that they count as one.
        """
        square = expected**2
        both_members = expected / (2 - expected) - square
        both_others = 2 * square / (1 + expected) - square
        spread = (self.members - 1) * both_members + (self.others - 1) * both_others
        return (expected * (1 - expected) + spread) / (self.members * self.others)


@dataclass
class Tally:
    """Attacks on prototypes of one kind; each counts by its pairs of a member and a non-member."""

    attacked: dict[Prototype, Attacked] = field(default_factory=dict)

    def add(self, prototype: Prototype, members: npt.NDArray[np.float64], others: npt.NDArray[np.float64]) -> None:
        if len(members) and len(others):
            attacked = self.attacked.setdefault(prototype, Attacked(len(members), len(others)))
            attacked.aucs.append(auc(members, others))

    @property
    def prototypes(self) -> int:
        return len(self.attacked)

    @property
    def pairs(self) -> int:
        return sum(attacked.pairs for attacked in self.attacked.values())

    @property
    def auc(self) -> float:
        return _mean(list(self.attacked.values()))

    @property
    def interval(self) -> Interval:
        """The 95 % interval of the AUC, over other images, or over other prototypes if those vary more.

        A score interval: the expectations from which the AUC is at most 1.96 deviations away, as Wilson's is for a
        share. So an AUC of 1 from a few images has an interval, too.
        """
        attacked = list(self.attacked.values())
        found, shares = _mean(attacked), _shares(attacked)
        apart = sum((share * (each.auc - found)) ** 2 for share, each in zip(shares, attacked, strict=True))
        between = apart * len(attacked) / (len(attacked) - 1) if len(attacked) > 1 else 0.0

        def is_near(expected: float) -> bool:
            images = sum(share**2 * each.variance(expected) for share, each in zip(shares, attacked, strict=True))
            return abs(found - expected) <= _Z * math.sqrt(max(images, between))

        return Interval(_furthest(found, 0.0, is_near), _furthest(found, 1.0, is_near))


def _mean(attacked: Sequence[Attacked]) -> float:
    # of sums, not of shares: what is right in all pairs is exactly 1
    return math.fsum(each.pairs * each.auc for each in attacked) / sum(each.pairs for each in attacked)


def _shares(attacked: Sequence[Attacked]) -> list[float]:
    pairs = sum(each.pairs for each in attacked)
    return [each.pairs / pairs for each in attacked]


def _furthest(found: float, end: float, is_near: Callable[[float], bool]) -> float:
    """The value furthest from the one that was found, towards an end, that is near to it."""
    if is_near(end):
        return end
    near, far = found, end
    for _ in range(_HALVINGS):
        middle = (near + far) / 2
        near, far = (middle, far) if is_near(middle) else (near, middle)
    return near
