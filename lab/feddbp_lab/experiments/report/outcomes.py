"""What came out of cells: accuracies by rule of inference, and of several seeds together."""

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
class CellResult:
    """A cell that is done."""

    options: dict[str, Any]
    """Of its run, by their dotted names."""
    images: int
    inference: str
    """The rule that counts."""
    curves: dict[str, Curve]

    @classmethod
    def of(cls, results: RunResults) -> CellResult:
        """Raises DamagedCellError where something is missing in them."""
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
        """Of the rule that counts, if none is named; empty if the method has no such rule."""
        return self.curves.get(rule or self.inference, {})


def _curves(lines: Iterable[dict[str, Any]]) -> dict[str, Curve]:
    right: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    samples: dict[int, int] = defaultdict(int)
    for line in lines:
        samples[line["round"]] += line["test_samples"]
        for rule, accuracy in line["accuracies"].items():
            right[rule][line["round"]] += accuracy * line["test_samples"]
    return {
        rule: {number: 100 * of_round[number] / samples[number] for number in sorted(of_round) if samples[number]}
        for rule, of_round in right.items()
    }


@dataclass(frozen=True)
class SeedValues:
    """A quantity by seed."""

    by_seed: Mapping[int, float]

    @property
    def mean(self) -> float:
        return fmean(self.by_seed.values())

    @property
    def deviation(self) -> float | None:
        """Of a sample; none of a single value."""
        return stdev(self.by_seed.values()) if len(self.by_seed) > 1 else None

    def above(self, other: SeedValues) -> float | None:
        """By how much on average, over the seeds both have: another seed is another split of the data."""
        common = self.by_seed.keys() & other.by_seed.keys()
        return fmean(self.by_seed[seed] - other.by_seed[seed] for seed in common) if common else None


@dataclass(frozen=True, kw_only=True)
class PointResult:
    """A point of a grid, as far as its cells are done."""

    seeds: int
    failed: int
    by_seed: Mapping[int, CellResult]

    @property
    def results(self) -> Collection[CellResult]:
        return self.by_seed.values()

    def rules(self) -> list[str]:
        """Every rule of inference that was recorded."""
        return list(dict.fromkeys(rule for result in self.results for rule in result.curves))

    def best(self, rule: str | None = None) -> SeedValues | None:
        return self._over_seeds(rule, lambda curve: max(curve.values()))

    def last(self, rule: str | None = None) -> SeedValues | None:
        return self._over_seeds(rule, lambda curve: curve[max(curve)])

    def mean_curve(self) -> Curve:
        """Over the seeds that are there, in the rounds that all of them have."""
        curves = [result.curve(None) for result in self.results]
        common = set.intersection(*(set(curve) for curve in curves)) if curves else set()
        return {number: fmean(curve[number] for curve in curves) for number in sorted(common)}

    def _over_seeds(self, rule: str | None, of_curve: Callable[[Curve], float]) -> SeedValues | None:
        found = {seed: of_curve(curve) for seed, result in self.by_seed.items() if (curve := result.curve(rule))}
        return SeedValues(found) if found else None


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """Everything a plan's cells have come to."""

    done: dict[str, CellResult]
    failures: dict[str, Failure]
    missing: tuple[str, ...]
    """Neither done nor failed."""

    @classmethod
    def read(cls, plan: Plan, store: OutputDir) -> Outcomes:
        done: dict[str, CellResult] = {}
        failures: dict[str, Failure] = {}
        for name in plan.cell_ids:
            folder = store.folder(name)
            if folder.state is CellState.DONE:
                try:
                    done[name] = CellResult.of(folder.results())
                except DamagedCellError as error:
                    failures[name] = Failure.of(error)
            elif folder.state is CellState.FAILED and (failure := folder.failure()) is not None:
                failures[name] = failure
        missing = tuple(name for name in plan.cell_ids if name not in done and name not in failures)
        return cls(done=done, failures=failures, missing=missing)

    def at(self, point: Point) -> PointResult:
        return PointResult(
            seeds=len(point.cells),
            failed=sum(name in self.failures for name in point.cells.values()),
            by_seed={seed: self.done[name] for seed, name in point.cells.items() if name in self.done},
        )

    @property
    def images(self) -> dict[str, list[int]]:
        """By data set, how many there were: a data directory may hold less than was published."""
        found: dict[str, set[int]] = defaultdict(set)
        for result in self.done.values():
            found[result.options["data.dataset"]].add(result.images)
        return {dataset: sorted(counts) for dataset, counts in found.items()}

    def common(self, option: str) -> Any:
        """The value of an option all cells have, or None if they differ or there are none."""
        values = {result.options[option] for result in self.done.values()}
        return values.pop() if len(values) == 1 else None
