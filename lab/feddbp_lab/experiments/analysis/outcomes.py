"""The results of a plan's cells: accuracy by round and by client, and statistics over seeds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from feddbp_common.config.nested import dotted
from feddbp_lab.experiments.analysis.intervals import student_quantile
from feddbp_lab.experiments.analysis.rounds import (
    ClientCounts,
    Curve,
    Line,
    Moment,
    RoundResult,
    RuleResult,
    counted_lines,
)
from feddbp_lab.experiments.plan import Plan, Point
from feddbp_lab.experiments.run.cell_dir import CellDir, CellState, Damage, DamagedCellError, Failure
from feddbp_lab.experiments.run.output_dir import OutputDir
from feddbp_lab.results.protocol import Basis, basis_of, counts_in_result, expected_clients


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """The results and failures of all cells of a plan."""

    done: dict[str, CellResult]
    failures: dict[str, Failure]
    missing: tuple[str, ...]
    """Cells that are neither done nor failed."""

    @classmethod
    def read(cls, plan: Plan, output: OutputDir) -> Outcomes:
        (outcomes,) = cls.read_all([plan], output)
        return outcomes

    @classmethod
    def read_all(cls, plans: Iterable[Plan], output: OutputDir) -> list[Outcomes]:
        """Of several plans; a cell that they share is read once."""
        known: dict[str, CellResult | Failure | None] = {}
        found = []
        for plan in plans:
            known |= {cell_id: _read(output.cell_dir(cell_id)) for cell_id in plan.cell_ids if cell_id not in known}
            of_plan = {cell_id: known[cell_id] for cell_id in plan.cell_ids}
            found.append(
                cls(
                    done={name: result for name, result in of_plan.items() if isinstance(result, CellResult)},
                    failures={name: result for name, result in of_plan.items() if isinstance(result, Failure)},
                    missing=tuple(name for name, result in of_plan.items() if result is None),
                )
            )
        return found

    @property
    def damaged(self) -> dict[str, Failure]:
        """Those of the failures that are of cells that are done, but whose results cannot be read."""
        return {cell_id: failure for cell_id, failure in self.failures.items() if isinstance(failure, Damage)}

    def at(self, point: Point) -> PointResult:
        return self._over(point.cells)

    def without_exchange(self, point: Point) -> PointResult | None:
        """The results of the same runs without exchange; None if they are not part of the plan."""
        return self._over(point.without_exchange) if point.without_exchange else None

    def _over(self, cells: Mapping[int, str]) -> PointResult:
        return PointResult(
            seeds=len(cells),
            failed=sum(cell_id in self.failures for cell_id in cells.values()),
            by_seed={seed: self.done[cell_id] for seed, cell_id in cells.items() if cell_id in self.done},
        )

    @property
    def images(self) -> dict[str, list[int]]:
        """By data set, the numbers of images in its runs: a data directory may hold a subset."""
        found: dict[str, set[int]] = defaultdict(set)
        for result in self.done.values():
            found[result.options["data.dataset"]].add(result.images)
        return {dataset: sorted(counts) for dataset, counts in found.items()}

    def common(self, option: str) -> Any:
        """The value of an option in all cells; None if it differs, is at its default, or if no cell is done."""
        values = {result.options.get(option) for result in self.done.values()}
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

    @property
    def bases(self) -> set[Basis]:
        return {result.basis for result in self.results}

    def rules(self) -> list[str]:
        """Every inference rule that was recorded."""
        return list(dict.fromkeys(rule for result in self.results for rule in result.rules))

    def accuracy(self, rule: str | None = None, moment: Moment = Moment.REPORTED) -> SeedValues | None:
        """Test accuracy; None without results, or without fine-tuning where it is that before it."""
        return self._over_seeds(rule, lambda found: found.counts(moment).accuracy)

    def validation(self, rule: str | None = None) -> SeedValues | None:
        """Validation accuracy in the round of the result; None without validation samples."""
        return self._over_seeds(rule, lambda found: found.reported.validation.accuracy)

    def mean_curve(self) -> Curve:
        """The mean over seeds, in the rounds that all of them have."""
        curves = [found.curve for result in self.results if (found := result.of_rule(None))]
        common = set.intersection(*(set(curve) for curve in curves)) if curves else set()
        return {number: fmean(curve[number] for curve in curves) for number in sorted(common)}

    def curve_bands(self) -> dict[int, tuple[float, float]]:
        """The 95 % confidence interval of the mean curve over seeds, by round; empty for a single seed."""
        curves = [found.curve for result in self.results if (found := result.of_rule(None))]
        if len(curves) < 2:
            return {}
        reach = student_quantile(len(curves) - 1) / math.sqrt(len(curves))
        bands = {}
        for number, mean in self.mean_curve().items():
            spread = reach * stdev(curve[number] for curve in curves)
            bands[number] = max(0.0, mean - spread), min(100.0, mean + spread)
        return bands

    def total(self, quantity: Callable[[CellResult], float | None]) -> float | None:
        """A quantity of the cells added up over seeds; None if one of them, or all, lack it."""
        values = [quantity(result) for result in self.results]
        known = [value for value in values if value is not None]
        return sum(known) if values and len(known) == len(values) else None

    def mean(self, quantity: Callable[[CellResult], float | None]) -> float | None:
        """Over seeds; None if one of them, or all, lack it."""
        total = self.total(quantity)
        return None if total is None else total / len(self.results)

    def _over_seeds(self, rule: str | None, of_rule: Callable[[RuleResult], float | None]) -> SeedValues | None:
        found = {seed: of_rule(result) for seed, cell in self.by_seed.items() if (result := cell.of_rule(rule))}
        known = {seed: value for seed, value in found.items() if value is not None}
        return SeedValues(known) if known else None


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


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """The results of a cell that is done."""

    options: dict[str, Any]
    """Of its run, by their dotted names; those at their default may be missing."""
    images: int
    inference: str
    """The method's own inference rule, by which it is compared."""
    basis: Basis
    expected_clients: int
    """The clients it is of, whether they evaluated or not."""
    rules: dict[str, RuleResult]
    """By inference rule."""
    rare: ClientCounts
    """Test samples of rare classes, by the own rule in the round of the result; empty in runs before 0.2.0."""
    core_minutes: float | None
    """CPU time; None if it was not recorded."""
    megabytes: float | None
    """Traffic of a client in a round, both directions."""
    parameters: float | None
    """Weights of all networks of a client, in millions: the mean over clients."""

    @classmethod
    def read(cls, directory: CellDir) -> CellResult:
        """Raises DamagedCellError if something cannot be read or is missing."""
        results = directory.results()
        seconds = directory.core_seconds()
        with directory.damage_as_error():
            return cls._of(results.summary, results.metrics, None if seconds is None else seconds / 60)

    @classmethod
    def _of(cls, summary: dict[str, Any], lines: list[dict[str, Any]], core_minutes: float | None) -> CellResult:
        config, inference = summary["config"], lines[0]["inference"]
        basis = basis_of(config)
        counted = [line for line in lines if counts_in_result(config, line["client"])]
        exchanged = config["rounds"] - config["finetune_rounds"] if config.get("finetune_rounds") else None
        rules = {rule: RuleResult.of(rule, counted, basis, exchanged) for rule in lines[0]["accuracies"]}
        reported = rules[inference].reported.round
        return cls(
            options=dotted(config),
            images=_images(summary, lines),
            inference=inference,
            basis=basis,
            expected_clients=expected_clients(summary),
            rules=rules,
            rare=ClientCounts.rare_in(dict(counted_lines(counted, inference))[reported]),
            core_minutes=core_minutes,
            megabytes=_megabytes(summary, lines),
            parameters=_parameters(summary),
        )

    @property
    def clients(self) -> int:
        """Over how many clients the result is."""
        return self.reported.clients

    @property
    def reported(self) -> RoundResult:
        """By the method's own rule."""
        return self.rules[self.inference].reported

    def of_rule(self, rule: str | None) -> RuleResult | None:
        """The results of a rule, by default the method's own; None if the method does not have it."""
        return self.rules.get(rule or self.inference)


def _read(directory: CellDir) -> CellResult | Failure | None:
    """None of a cell that is neither done nor failed."""
    if directory.state is CellState.FAILED:
        return directory.failure()
    if directory.state is not CellState.DONE:
        return None
    try:
        return CellResult.read(directory)
    except DamagedCellError as error:
        return Damage.of(error)


def _images(summary: Mapping[str, Any], lines: Iterable[Line]) -> int:
    """Of all clients but newcomers, whose shards an experiment may cut to different sizes."""
    config = summary["config"]
    held_out = {line["client"]: line.get("validation_samples", 0) for line in lines}
    return sum(
        client["train_samples"] + client["test_samples"] + held_out.get(client["client"], 0)
        for client in summary["per_client"]
        if not config.get("newcomers") or not counts_in_result(config, client["client"])
    )


def _megabytes(summary: Mapping[str, Any], lines: Iterable[Line]) -> float | None:
    """All bytes over the reports on rounds, that is without the evaluation after the last."""
    reports = sum(line["round"] < summary["completed_rounds"] for line in lines)
    return float((summary["bytes_up"] + summary["bytes_down"]) / reports / 1e6) if reports else None


def _parameters(summary: Mapping[str, Any]) -> float | None:
    known = [client["parameters"] for client in summary["per_client"] if client.get("parameters")]
    return fmean(known) / 1e6 if known else None
