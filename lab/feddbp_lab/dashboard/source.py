"""Where the page's data come from: a live server, or the files of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from feddbp_common.wire import PrototypeSet
from feddbp_lab.dashboard.model import Json, RunModel
from feddbp_lab.results.class_map import ClassMap, class_map, similarities

_MOST_CLASSES = 400
"""Classes up to which the matrix of similarities is sent: beyond, a page cannot show it."""


class RunSource(ABC):
    """One run, and what the page may ask of it."""

    is_live: ClassVar[bool] = False

    def __init__(self) -> None:
        self.model = RunModel()
        self.baseline: dict[int, float] = {}
        """By client id, the last accuracy of a `local` run of the same seed."""
        self._snapshots: dict[int, PrototypeSet] = {}
        self._map: ClassMap | None = None

    @abstractmethod
    async def load_prototypes(self) -> dict[int, PrototypeSet]:
        """Global prototypes by completed rounds; empty if the run does not share them."""

    @abstractmethod
    async def client_prototypes(self, client_id: int) -> list[Json]:
        """A client's classes compared with the global ones; empty if unknown."""

    async def prototypes(self) -> Json:
        """The class map of every round that was kept."""
        self._snapshots = await self.load_prototypes()
        self._map = made = class_map(self._snapshots, self._map)
        if made is None:
            return {"rounds": []}
        return {
            "rounds": made.rounds,
            "classes": made.class_ids.tolist(),
            "explained": round(made.explained, 3),
            "positions": [
                [None if np.isnan(x) else [round(float(x), 4), round(float(y), 4)] for x, y in positions]
                for positions in made.positions
            ],
        }

    async def similarity(self, completed_rounds: int) -> Json:
        """Cosines between classes, in per cent."""
        found = self._snapshots.get(completed_rounds)
        if found is None or len(found) > _MOST_CLASSES:
            return {"classes": [], "matrix": []}
        rows = np.rint(100 * similarities(found)).astype(int)
        return {"classes": found.class_ids.tolist(), "matrix": rows.tolist()}
