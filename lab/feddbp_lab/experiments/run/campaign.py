"""`feddbp experiment run`: from the options to the last cell."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console

from feddbp_common.errors import ConfigurationError, ExitCode
from feddbp_common.optional_deps import require_lab
from feddbp_lab.experiments.cell import Cell
from feddbp_lab.experiments.config import ExperimentConfig
from feddbp_lab.experiments.expansion import expand, seeds_of, select_cells
from feddbp_lab.experiments.plan import Plan
from feddbp_lab.experiments.report.build import write_report
from feddbp_lab.experiments.run.cell_dir import CellState
from feddbp_lab.experiments.run.display import LiveBars, PlainLines, Workload
from feddbp_lab.experiments.run.output_dir import OutputDir
from feddbp_lab.experiments.run.runner import Runner
from feddbp_lab.experiments.spec import BUILT_IN, ExperimentSpec, load_experiment
from feddbp_lab.processes.signals import handle_stop_signals

PROG: Final = "feddbp experiment run"
_DEFAULT_PROFILE: Final = "quick"


def run_campaign(given: str, config: ExperimentConfig, *, only: Sequence[str]) -> int:
    what, spec = config.what, load_experiment(given)
    profile = what.profile or (_DEFAULT_PROFILE if spec.name in BUILT_IN else None)
    seeds = what.seeds or seeds_of(spec, profile)
    asked = expand(spec, seeds=seeds, profile=profile, overrides=what.override)
    cells = select_cells(asked.cells.values(), only)
    if what.dry_run:
        print(*(cell.id for cell in cells), sep="\n")
        return ExitCode.OK
    if what.out is None:
        raise ConfigurationError("--out is required: the directory where results are kept")
    require_lab("an experiment")
    store = OutputDir(what.out)
    with store.lock():
        store.plans()  # one that cannot be read is told now, and not by the report after hours of work
        plan = _with_earlier_seeds(spec, asked.plan, store)
        _tell_of_others(plan, store)
        store.keep(plan)
        left = _not_done(cells, store, keep_state=config.where.keep_state)
        print(_greeting(asked.plan, cells, left, config), flush=True)
        code = asyncio.run(_run(store, left, config)) if left else ExitCode.OK
        if code != ExitCode.INTERRUPTED:
            print(f"report: {write_report(store)}")
    return code


def _with_earlier_seeds(spec: ExperimentSpec, asked: Plan, store: OutputDir) -> Plan:
    """Seeds of one experiment may be run on different days; the report shows them together."""
    earlier = store.plan(asked.name)
    if earlier is None:
        return asked
    for what, there, here in (
        ("profile", earlier.profile, asked.profile),
        ("overrides", earlier.overrides, asked.overrides),
    ):
        if there != here:
            raise ConfigurationError(
                f"{store.path} holds {asked.name} with {what} {_told(there)}, not {_told(here)}; "
                "give the same, or another --out"
            )
    begun = {seed for seed in earlier.seeds if _is_begun(earlier, seed, store)}
    return expand(spec, seeds={*begun, *asked.seeds}, profile=asked.profile, overrides=asked.overrides).plan


def _is_begun(plan: Plan, seed: int, store: OutputDir) -> bool:
    cells = (point.cells[seed] for part in plan.parts for point in part.points)
    return any(store.folder(cell).state is not CellState.WAITING for cell in cells)


def _tell_of_others(plan: Plan, store: OutputDir) -> None:
    """A grid may have changed since it was run last; what it had then is not lost, but no longer reported."""
    earlier = store.plan(plan.name)
    if earlier is None:
        return
    left_out = set(earlier.cell_ids) - set(plan.cell_ids)
    done = sum(store.folder(cell).state is CellState.DONE for cell in left_out)
    if done:
        print(f"{plan.name} has changed since it was run here last: {_cells(done)} kept but no longer reported")


def _told(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={setting}" for name, setting in value.items()) or "none"
    return str(value or "none")


def _not_done(cells: list[Cell], store: OutputDir, *, keep_state: bool) -> list[Cell]:
    left = []
    for cell in cells:
        folder = store.folder(cell.id)
        if folder.state is not CellState.DONE:
            left.append(cell)
        else:
            folder.tidy(keep_state=keep_state)
    return left


def _greeting(plan: Plan, cells: list[Cell], left: list[Cell], config: ExperimentConfig) -> str:
    machine = config.where.machine
    on = f"GPUs {', '.join(map(str, machine.gpus))}" if machine.gpus else f"{machine.cores} CPU cores"
    done = f", {len(cells) - len(left)} of them done" if len(left) < len(cells) else ""
    profile = f", profile {plan.profile}" if plan.profile else ""
    return f"{plan.title}{profile}: {_cells(len(cells))}{done}; up to {machine.jobs} at once on {on}"


def _cells(count: int) -> str:
    return f"{count} cell{'s' if count != 1 else ''}"


async def _run(store: OutputDir, cells: list[Cell], config: ExperimentConfig) -> int:
    with _display(cells) as display:
        runner = Runner(
            store=store,
            cells=cells,
            machine=config.where.machine,
            display=display,
            keep_state=config.where.keep_state,
        )
        handle_stop_signals(runner.stop)
        await runner.run()
    if runner.interrupted:
        print(f"{PROG}: interrupted, every process is stopped; the same command goes on from here", file=sys.stderr)
        return ExitCode.INTERRUPTED
    if runner.failed:
        print(
            f"{PROG}: {_cells(len(runner.failed))} failed; feddbp experiment status {store.path} tells why",
            file=sys.stderr,
        )
        return ExitCode.RUN_FAILED
    return ExitCode.OK


def _display(cells: list[Cell]) -> LiveBars | PlainLines:
    console, workload = Console(), Workload(cells)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveBars(workload=workload, console=console)
    return PlainLines(workload=workload, output=sys.stdout)
