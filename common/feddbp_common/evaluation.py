"""How a run is evaluated: the round its result is taken from, and which classes of a client are rare."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, Protocol, TypeVar

RARE_CLASS_SAMPLES: Final = 10
"""A class of which a client has fewer training samples is rare on that client."""


class RoundPoint(Protocol):
    """The results of a round."""

    @property
    def clients(self) -> int:
        """How many clients reported on it."""


PointT = TypeVar("PointT", bound=RoundPoint)


def best_round(points: Collection[PointT], accuracy: Callable[[PointT], float]) -> PointT | None:
    """The round of highest accuracy, the first of several; only rounds on which most clients reported count.

    A few clients' accuracy is not the federation's.
    """
    most = max((point.clients for point in points), default=0)
    complete = (point for point in points if point.clients == most)
    return max(complete, key=accuracy, default=None)
