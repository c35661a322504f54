"""What a runner is about to do: the plan with earlier seeds, and the cells that are left, were dropped or failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from feddbp_common.artifacts import CELL_LOCK_NAME
from feddbp_common.errors import ConfigurationError
from feddbp_common.file_lock import is_locked
from feddbp_common.humanize import quantity
from feddbp_lab.experiments.cell import Cell
from feddbp_lab.experiments.config import SelectionConfig
from feddbp_lab.experiments.expansion import Expansion, expand, seeds_of, select_cells
from feddbp_lab.experiments.plan import Plan
from feddbp_lab.experiments.resources import Resources
from feddbp_lab.experiments.run.cell_dir import CellDir, CellState
from feddbp_lab.experiments.run.lease import LeaseWatch
from feddbp_lab.experiments.run.output_dir import OutputDir
from feddbp_lab.experiments.spec import BUILT_IN, ExperimentSpec, load_experiment

_DEFAULT_PROFILE: Final = "quick"


@dataclass(frozen=True, kw_only=True)
class RequestedCells:
    """An experiment as it is asked for, and the cells of it that were selected."""

    spec: ExperimentSpec
    expansion: Expansion
    cells: list[Cell]


def requested_cells(
    experiment: str, selection: SelectionConfig, only: Sequence[str], resources: Resources
) -> RequestedCells:
    spec = load_experiment(experiment)
    profile = selection.profile or (_DEFAULT_PROFILE if spec.name in BUILT_IN else None)
    seeds = selection.seeds or seeds_of(spec, profile)
    expansion = expand(spec, seeds=seeds, profile=profile, overrides=selection.override)
    cells = {cell_id: Cell(cell.run, resources.or_else(cell.resources)) for cell_id, cell in expansion.cells.items()}
    expansion = Expansion(plan=expansion.plan, cells=cells)
    return RequestedCells(spec=spec, expansion=expansion, cells=select_cells(cells.values(), only))


def save_plan(requested: RequestedCells, output: OutputDir) -> None:
    """Saves the plan with the seeds that were started earlier, and prints which cells are no longer part of it."""
    with output.planning():
        output.plans()  # reports a damaged plan now, and not in the report after hours of work
        expansion = _with_earlier_seeds(requested, output)
        _print_dropped_cells(expansion.plan, output)
        output.save_plan(expansion.plan, expansion.cells.values())


def _with_earlier_seeds(requested: RequestedCells, output: OutputDir) -> Expansion:
    """The requested plan with the seeds that were started earlier, which the report shows together."""
    plan = requested.expansion.plan
    earlier = output.plan(plan.name)
    if earlier is None:
        return requested.expansion
    check_same_options(earlier, plan, output, remedy="give the same, or another --out")
    seeds = {*started_seeds(earlier, output), *plan.seeds}
    expansion = expand(requested.spec, seeds=seeds, profile=plan.profile, overrides=plan.overrides)
    return Expansion(plan=expansion.plan, cells=_with_resources(expansion.cells, requested.expansion.cells))


def check_same_options(earlier: Plan, plan: Plan, output: OutputDir, *, remedy: str) -> None:
    """Raises ConfigurationError if `output` holds the experiment with other options."""
    for name, there, here in (
        ("profile", earlier.profile, plan.profile),
        ("overrides", earlier.overrides, plan.overrides),
    ):
        if there != here:
            raise ConfigurationError(
                f"{output.name} holds {plan.name} with {name} {_as_text(there)}, not {_as_text(here)}; {remedy}"
            )


def started_seeds(plan: Plan, output: OutputDir) -> list[int]:
    return [seed for seed in plan.seeds if _is_started(plan, seed, output)]


def _with_resources(cells: Mapping[str, Cell], requested: Mapping[str, Cell]) -> dict[str, Cell]:
    return {cell_id: requested.get(cell_id, cell) for cell_id, cell in cells.items()}


def _is_started(plan: Plan, seed: int, output: OutputDir) -> bool:
    return any(output.cell_dir(cell).state is not CellState.WAITING for cell in plan.cell_ids_of(seed))


def _print_dropped_cells(plan: Plan, output: OutputDir) -> None:
    """Reports finished cells that are no longer part of an experiment that has changed."""
    earlier = output.plan(plan.name)
    if earlier is None:
        return
    left_out = set(earlier.cell_ids) - set(plan.cell_ids)
    done = sum(output.cell_dir(cell).state is CellState.DONE for cell in left_out)
    if done:
        print(f"{plan.name} has changed since its last run here: {quantity(done, 'cell')} kept but no longer reported")


def cells_left(cells: Sequence[Cell], output: OutputDir, watch: LeaseWatch, *, keep_state: bool) -> list[Cell]:
    """Cells that are not done; removes what a killed runner has left of those that are."""
    clean_up_done(cells, output, watch, keep_state=keep_state)
    return [cell for cell in cells if output.cell_dir(cell.id).state is not CellState.DONE]


def clean_up_done(cells: Iterable[Cell], output: OutputDir, watch: LeaseWatch, *, keep_state: bool) -> None:
    """Removes what killed runners have left of cells that are done.

    Of a runner on another machine only once `watch` has seen no renewal of its lease for the lease time.
    """
    for cell in cells:
        directory = output.cell_dir(cell.id)
        if directory.state is CellState.DONE and not _may_have_a_runner(cell, directory, watch):
            directory.clean_up(keep_state=keep_state)


def _may_have_a_runner(cell: Cell, directory: CellDir, watch: LeaseWatch) -> bool:
    """Whether a runner is about to clean up itself; clocks are not compared, they differ between machines."""
    lease = directory.lease()
    if lease is not None and not lease.is_of_this_machine and not watch.has_ended(cell.id, lease):
        return True
    return is_locked(directory.path / CELL_LOCK_NAME)


def failed_before(cells: Sequence[Cell], output: OutputDir) -> list[Cell]:
    return [cell for cell in cells if output.cell_dir(cell.id).state is CellState.FAILED]


def _as_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={setting}" for name, setting in value.items()) or "none"
    return str(value or "none")
