"""`feddbp experiment run`: expands an experiment, runs the cells that are not done, and writes the report."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console

from feddbp_common.errors import ConfigurationError, ExitCode
from feddbp_lab.experiments.cell import Cell
from feddbp_lab.experiments.config import ExperimentConfig
from feddbp_lab.experiments.expansion import expand, seeds_of, select_cells
from feddbp_lab.experiments.plan import Plan
from feddbp_lab.experiments.report.build import write_report
from feddbp_lab.experiments.run.cell_dir import CellState
from feddbp_lab.experiments.run.display import LiveCellDisplay, PlainCellDisplay, Workload
from feddbp_lab.experiments.run.output_dir import OutputDir
from feddbp_lab.experiments.run.runner import Runner
from feddbp_lab.experiments.spec import BUILT_IN, ExperimentSpec, load_experiment
from feddbp_lab.processes.local_federation import require_lab
from feddbp_lab.processes.signals import handle_stop_signals

PROG: Final = "feddbp experiment run"
_DEFAULT_PROFILE: Final = "quick"


def run_campaign(experiment: str, config: ExperimentConfig, *, only: Sequence[str]) -> int:
    selection, spec = config.what, load_experiment(experiment)
    profile = selection.profile or (_DEFAULT_PROFILE if spec.name in BUILT_IN else None)
    seeds = selection.seeds or seeds_of(spec, profile)
    requested = expand(spec, seeds=seeds, profile=profile, overrides=selection.override)
    cells = select_cells(requested.cells.values(), only)
    if selection.dry_run:
        print(*(cell.id for cell in cells), sep="\n")
        return ExitCode.OK
    if selection.out is None:
        raise ConfigurationError("--out is required: the directory where results are kept")
    require_lab("an experiment")
    output = OutputDir(selection.out)
    with output.lock():
        output.plans()  # reports a damaged plan now, and not in the report after hours of work
        plan = _with_earlier_seeds(spec, requested.plan, output)
        _print_dropped_cells(plan, output)
        output.save_plan(plan)
        left = _not_done(cells, output, keep_state=config.where.keep_state)
        print(_heading(requested.plan, cells, left, config), flush=True)
        code = asyncio.run(_run(output, left, config)) if left else ExitCode.OK
        if code != ExitCode.INTERRUPTED:
            print(f"report: {write_report(output)}")
    return code


def _with_earlier_seeds(spec: ExperimentSpec, requested: Plan, output: OutputDir) -> Plan:
    """The requested plan with the seeds that were started earlier, which the report shows together."""
    earlier = output.plan(requested.name)
    if earlier is None:
        return requested
    for name, there, here in (
        ("profile", earlier.profile, requested.profile),
        ("overrides", earlier.overrides, requested.overrides),
    ):
        if there != here:
            raise ConfigurationError(
                f"{output.path} holds {requested.name} with {name} {_as_text(there)}, not {_as_text(here)}; "
                "give the same, or another --out"
            )
    started = {seed for seed in earlier.seeds if _is_started(earlier, seed, output)}
    return expand(
        spec, seeds={*started, *requested.seeds}, profile=requested.profile, overrides=requested.overrides
    ).plan


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
        print(f"{plan.name} has changed since its last run here: {_count_cells(done)} kept but no longer reported")


def _as_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={setting}" for name, setting in value.items()) or "none"
    return str(value or "none")


def _not_done(cells: list[Cell], output: OutputDir, *, keep_state: bool) -> list[Cell]:
    left = []
    for cell in cells:
        directory = output.cell_dir(cell.id)
        if directory.state is not CellState.DONE:
            left.append(cell)
        else:
            directory.clean_up(keep_state=keep_state)
    return left


def _heading(plan: Plan, cells: list[Cell], left: list[Cell], config: ExperimentConfig) -> str:
    machine = config.where.machine
    resources = f"GPUs {', '.join(map(str, machine.gpus))}" if machine.gpus else f"{machine.cores} CPU cores"
    done = f", {len(cells) - len(left)} of them done" if len(left) < len(cells) else ""
    profile = f", profile {plan.profile}" if plan.profile else ""
    return f"{plan.title}{profile}: {_count_cells(len(cells))}{done}; up to {machine.jobs} at a time on {resources}"


def _count_cells(count: int) -> str:
    return f"{count} cell{'s' if count != 1 else ''}"


async def _run(output: OutputDir, cells: list[Cell], config: ExperimentConfig) -> int:
    with _display(cells) as display:
        runner = Runner(
            output=output,
            cells=cells,
            machine=config.where.machine,
            display=display,
            keep_state=config.where.keep_state,
        )
        handle_stop_signals(runner.stop)
        await runner.run()
    if runner.interrupted:
        print(f"{PROG}: interrupted, every process is stopped; the same command resumes it", file=sys.stderr)
        return ExitCode.INTERRUPTED
    if runner.failed:
        print(
            f"{PROG}: {_count_cells(len(runner.failed))} failed; feddbp experiment status {output.path} shows why",
            file=sys.stderr,
        )
        return ExitCode.RUN_FAILED
    return ExitCode.OK


def _display(cells: list[Cell]) -> LiveCellDisplay | PlainCellDisplay:
    console, workload = Console(), Workload(cells)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveCellDisplay(workload=workload, console=console)
    return PlainCellDisplay(workload=workload, output=sys.stdout)
