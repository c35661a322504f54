"""The kept cells by the labels of their rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from feddbp_common.config.catalog import DATASETS
from feddbp_lab.experiments.analysis.comparison import Difference, compare
from feddbp_lab.experiments.analysis.grid import ResultGrid
from feddbp_lab.experiments.analysis.outcomes import Outcomes, PointResult
from feddbp_lab.experiments.analysis.rounds import Moment
from feddbp_lab.experiments.run.output_dir import OutputDir

KEPT: Final = Path(__file__).parents[1] / "results" / "quick"
SETS: Final = {
    "CIFAR-100": "CIFAR-100",
    "Oxford Flowers-102": "Flowers-102",
    "Tiny-ImageNet-200": "Tiny-ImageNet",
    "CIFAR-10": "CIFAR-10",
}
"""The data sets by their titles, with their heads in tables."""
CIFAR_100: Final = "CIFAR-100"
LOCAL: Final = "Local training"
ALONE: Final = "{}, no exchange"
"""Makes the label of a control from that of its method."""
_OF_OTHER_RUNS: Final = ("tuning", "newcomer", "table2")
"""Experiments whose rows have the labels of others, but other seeds, clients or epochs: see `Kept.grid`."""


class Kept:
    """The results of the kept cells, by the labels of their rows."""

    def __init__(self, directory: Path = KEPT) -> None:
        output = OutputDir(directory)
        plans = output.plans()
        self._grids = {
            plan.name: [ResultGrid(part, outcomes) for part in plan.parts]
            for plan, outcomes in zip(plans, Outcomes.read_all(plans, output), strict=True)
        }
        self._results = self._by_row()
        self._differences: dict[tuple[str, ...], Difference | None] = {}

    def of(self, row: str, dataset: str = CIFAR_100) -> PointResult | None:
        """The results of a method, of its control or of a variant; None without any."""
        return self._results.get((row, dataset))

    def compare(
        self,
        ours: str,
        theirs: str,
        dataset: str = CIFAR_100,
        moment: Moment = Moment.REPORTED,
        *,
        rule: str | None = None,
        their_rule: str | None = None,
    ) -> Difference | None:
        """Two rows on a data set; None where one of them has no results."""
        key = (ours, theirs, dataset, moment, rule or "", their_rule or "")
        if key not in self._differences:
            one, other = self.of(ours, dataset), self.of(theirs, dataset)
            found = compare(one, other, rule, moment, their_rule=their_rule) if one and other else None
            self._differences[key] = found
        return self._differences[key]

    def grid(self, experiment: str) -> ResultGrid:
        return self._grids[experiment][0]

    def _by_row(self) -> dict[tuple[str, str], PointResult]:
        """Where experiments share a row, their cells have to be the same: that with the most seeds has all of them."""
        found: dict[tuple[str, str], PointResult] = {}
        for name, grids in self._grids.items():
            if name in _OF_OTHER_RUNS:
                continue
            for label, result in itertools.chain.from_iterable(map(_rows_of, grids)):
                (dataset,) = {DATASETS[cell.options["data.dataset"]].title for cell in result.results}
                other = found.setdefault((label, dataset), result)
                for seed in other.by_seed.keys() & result.by_seed.keys():
                    if other.by_seed[seed].options != result.by_seed[seed].options:
                        raise ValueError(f"{label} on {dataset} is another run in {name}")
                if len(result.by_seed) > len(other.by_seed):
                    found[label, dataset] = result
        return found


def _rows_of(grid: ResultGrid) -> Iterable[tuple[str, PointResult]]:
    """The results with their rows' labels."""
    for row, place in itertools.product(grid.rows, grid.places):
        result = grid.result(row, place)
        if result is not None and result.by_seed:
            yield row.labels[-1], result
