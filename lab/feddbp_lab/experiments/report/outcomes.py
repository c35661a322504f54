"""The results of a plan's cells: accuracy curves by inference rule, and statistics over seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from feddbp_common.config.nested import dotted
from feddbp_lab.experiments.plan import Plan, Point
from feddbp_lab.experiments.run.cell_dir import CellState, DamagedCellError, Failure
from feddbp_lab.experiments.run.output_dir import OutputDir
from feddbp_lab.results.run_results import RunResults

Curve = dict[int, float]
"""Accuracy in per cent over all clients' test samples, by completed rounds."""


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """The results and failures of all cells of a plan."""

    done: dict[str, CellResult]
    failures: dict[str, Failure]
    missing: tuple[str, ...]
    """Cells that are neither done nor failed."""

    @classmethod
    def read(cls, plan: Plan, output: OutputDir) -> Outcomes:
        done: dict[str, CellResult] = {}
        failures: dict[str, Failure] = {}
        for cell_id in plan.cell_ids:
            directory = output.cell_dir(cell_id)
            if directory.state is CellState.DONE:
                try:
                    done[cell_id] = CellResult.of(directory.results())
                except DamagedCellError as error:
                    failures[cell_id] = Failure.of(error)
            elif directory.state is CellState.FAILED and (failure := directory.failure()) is not None:
                failures[cell_id] = failure
        missing = tuple(cell_id for cell_id in plan.cell_ids if cell_id not in done and cell_id not in failures)
        return cls(done=done, failures=failures, missing=missing)

    def at(self, point: Point) -> PointResult:
        return PointResult(
            seeds=len(point.cells),
            failed=sum(cell_id in self.failures for cell_id in point.cells.values()),
            by_seed={seed: self.done[cell_id] for seed, cell_id in point.cells.items() if cell_id in self.done},
        )

    @property
    def images(self) -> dict[str, list[int]]:
        """By data set, the numbers of images in its runs: a data directory may hold a subset."""
        found: dict[str, set[int]] = defaultdict(set)
        for result in self.done.values():
            found[result.options["data.dataset"]].add(result.images)
        return {dataset: sorted(counts) for dataset, counts in found.items()}

    def common(self, option: str) -> Any:
        """The value of an option in all cells; None if it differs, or if no cell is done."""
        values = {result.options[option] for result in self.done.values()}
        return values.pop() if len(values) == 1 else None


@dataclass(frozen=True, kw_only=True)
class PointResult:
    """The results of a point of a grid, for the seeds that are done."""

    seeds: int
    """Seeds in the plan."""
    failed: int
    by_seed: Mapping[int, CellResult]

    @property
    def results(self) -> Collection[CellResult]:
        return self.by_seed.values()

    def rules(self) -> list[str]:
        """Every inference rule that was recorded."""
        return list(dict.fromkeys(rule for result in self.results for rule in result.curves))

    def best(self, rule: str | None = None) -> SeedValues | None:
        return self._over_seeds(rule, lambda curve: max(curve.values()))

    def last(self, rule: str | None = None) -> SeedValues | None:
        return self._over_seeds(rule, lambda curve: curve[max(curve)])

    def mean_curve(self) -> Curve:
        """The mean over seeds, in the rounds that all of them have."""
        curves = [result.curve(None) for result in self.results]
        common = set.intersection(*(set(curve) for curve in curves)) if curves else set()
        return {number: fmean(curve[number] for curve in curves) for number in sorted(common)}

    def _over_seeds(self, rule: str | None, of_curve: Callable[[Curve], float]) -> SeedValues | None:
        found = {seed: of_curve(curve) for seed, result in self.by_seed.items() if (curve := result.curve(rule))}
        return SeedValues(found) if found else None


@dataclass(frozen=True)
class SeedValues:
    """A quantity by seed, never empty."""

    by_seed: Mapping[int, float]

    @property
    def mean(self) -> float:
        return fmean(self.by_seed.values())

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation; None for a single seed."""
        return stdev(self.by_seed.values()) if len(self.by_seed) > 1 else None

    def difference_to(self, other: SeedValues) -> float | None:
        """Mean difference over the seeds both have: another seed is another split of the data."""
        common = self.by_seed.keys() & other.by_seed.keys()
        return fmean(self.by_seed[seed] - other.by_seed[seed] for seed in common) if common else None


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """The results of a cell that is done."""

    options: dict[str, Any]
    """Of its run, by their dotted names."""
    images: int
    inference: str
    """The method's own inference rule, by which it is compared."""
    curves: dict[str, Curve]
    """By inference rule."""

    @classmethod
    def of(cls, results: RunResults) -> CellResult:
        """Raises DamagedCellError if something is missing in them."""
        summary = results.summary
        try:
            return cls(
                options=dotted(summary["config"]),
                images=sum(client["train_samples"] + client["test_samples"] for client in summary["per_client"]),
                inference=results.metrics[0]["inference"],
                curves=_curves(results.metrics),
            )
        except (KeyError, IndexError, TypeError) as error:
            raise DamagedCellError.of_results(error) from None

    def curve(self, rule: str | None) -> Curve:
        """The curve of a rule, by default the method's own; empty if the method does not have the rule."""
        return self.curves.get(rule or self.inference, {})


def _curves(lines: Iterable[dict[str, Any]]) -> dict[str, Curve]:
    correct: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    samples: dict[int, int] = defaultdict(int)
    for line in lines:
        samples[line["round"]] += line["test_samples"]
        for rule, accuracy in line["accuracies"].items():
            correct[rule][line["round"]] += accuracy * line["test_samples"]
    return {
        rule: {number: 100 * by_round[number] / samples[number] for number in sorted(by_round) if samples[number]}
        for rule, by_round in correct.items()
    }
