"""`feddbp experiment run`, `plan` and `cell`: run cells of an experiment that are not done, and write the report."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from functools import partial
from typing import Final

from feddbp_common.errors import ConfigurationError, ExitCode
from feddbp_common.humanize import quantity
from feddbp_lab.experiments.cell import Cell
from feddbp_lab.experiments.config import ExecutionConfig, ExperimentConfig, SelectionConfig
from feddbp_lab.experiments.report.build import WrittenReport, write_report
from feddbp_lab.experiments.resources import Resources
from feddbp_lab.experiments.run.attempt import CellJob
from feddbp_lab.experiments.run.display import LiveCellDisplay, PlainCellDisplay, Workload
from feddbp_lab.experiments.run.executor import Executor, LocalExecutor
from feddbp_lab.experiments.run.lease import LeaseWatch
from feddbp_lab.experiments.run.output_dir import OutputDir
from feddbp_lab.experiments.run.planning import (
    RequestedCells,
    cells_left,
    clean_up_done,
    failed_before,
    requested_cells,
    save_plan,
)
from feddbp_lab.experiments.run.runner import Runner
from feddbp_lab.experiments.run.workspace import default_work_dir, make_private
from feddbp_lab.processes.local_federation import require_lab
from feddbp_lab.processes.signals import stop_processes_at_signals
from feddbp_lab.terminal.format import terminal

PROG: Final = "feddbp experiment"


def run_campaign(experiment: str, config: ExperimentConfig, *, only: Sequence[str]) -> int:
    requested = requested_cells(experiment, config.what, only, config.cell)
    cells, where = requested.cells, config.where
    if config.what.dry_run:
        print(*(cell.id for cell in cells), sep="\n")
        return ExitCode.OK
    output = _output(config.what)
    require_lab("an experiment")
    watch = LeaseWatch()
    with output.use():
        save_plan(requested, output)
        left = cells_left(cells, output, watch, keep_state=where.keep_state)
        failed = [] if where.retry_failed else failed_before(left, output)
        code = asyncio.run(_run(requested, [cell for cell in left if cell not in failed], output, where, failed))
        if code != ExitCode.INTERRUPTED:
            output.refresh()
            clean_up_done(cells, output, watch, keep_state=where.keep_state)
            with output.planning():
                report = write_report(output)
                print(f"report: {output.publish_report() if output.mirror else report.page}", flush=True)
            print_damaged(report)
            if any(cell.id in report.damaged for cell in cells):
                code = code or ExitCode.RUN_FAILED
    return code


def print_damaged(report: WrittenReport) -> None:
    """One line for each cell that counts as done, but whose results cannot be read."""
    for damage in report.damaged.values():
        print(f"{PROG}: damaged cell: {damage.cause}", file=sys.stderr)


def plan_campaign(experiment: str, selection: SelectionConfig, resources: Resources) -> int:
    """Saves what an experiment consists of, for runners that take its cells by their index."""
    requested = requested_cells(experiment, selection, (), resources)
    output = _output(selection)
    with output.use():
        save_plan(requested, output)
    name = requested.expansion.plan.name
    count = len(output.planned_cells(name))
    print(f"{name}: {quantity(count, 'cell')}; feddbp experiment cell {output.name} --index 0 to {count - 1}")
    return ExitCode.OK


def run_cell(out: str, index: int, experiment: str | None, where: ExecutionConfig, resources: Resources) -> int:
    """Runs one cell of a plan, or waits for the runner that has it."""
    output = OutputDir.open_existing(out)
    names = [plan.name for plan in output.plans()]
    if experiment is None and len(names) > 1:
        raise ConfigurationError(f"{output.name} holds {', '.join(names)}: say which with --experiment")
    name = experiment or names[0]
    if name not in names:
        raise ConfigurationError(f"{output.name} holds no experiment {name!r}; it holds {', '.join(names)}")
    cells = output.planned_cells(name)
    if not 0 <= index < len(cells):
        raise ConfigurationError(f"--index {index}: {name} has {quantity(len(cells), 'cell')}, 0 to {len(cells) - 1}")
    require_lab("an experiment")
    cell = Cell(cells[index].run, resources.or_else(cells[index].resources))
    with output.use():
        left = cells_left([cell], output, LeaseWatch(), keep_state=where.keep_state)
        if not left:
            print(f"done    {cell.id}: nothing to do")
            return ExitCode.OK
        failed = [] if where.retry_failed else failed_before(left, output)
        return asyncio.run(_run_cells([cell for cell in left if cell not in failed], output, where, failed))


def _output(selection: SelectionConfig) -> OutputDir:
    if selection.out is None:
        raise ConfigurationError("--out is required: the directory where results are kept")
    return OutputDir.at(selection.out)


async def _run(
    requested: RequestedCells, cells: list[Cell], output: OutputDir, where: ExecutionConfig, failed: list[Cell]
) -> int:
    plan, done = requested.expansion.plan, len(requested.cells) - len(cells) - len(failed)
    profile = f", profile {plan.profile}" if plan.profile else ""
    heading = f"{plan.title}{profile}: {quantity(len(requested.cells), 'cell')}"
    return await _run_cells(cells, output, where, failed, heading=heading + (f", {done} of them done" if done else ""))


async def _run_cells(
    cells: list[Cell], output: OutputDir, where: ExecutionConfig, failed: list[Cell], *, heading: str = ""
) -> int:
    """Runs cells; `failed` are those that failed before and are not run again."""
    failed_here: list[Cell] = []
    if not cells:
        print(heading, flush=True)
    else:
        if where.executor == "local" and not _works_in_place(output, where):
            make_private(where.work_dir or default_work_dir())  # else every cell would fail at it, one after another
        async with _executor(where) as executor:
            executor.check(cells)
            if heading:
                print(f"{heading}; {executor.description}", flush=True)
            runner = await _use(executor, cells, output, where)
        if runner.interrupted:
            print(f"{PROG}: interrupted, every process is stopped; the same command resumes it", file=sys.stderr)
            return ExitCode.INTERRUPTED
        failed_here = runner.failed
    if failed:
        print(f"{PROG}: {quantity(len(failed), 'cell')} failed before; --retry-failed runs them again", file=sys.stderr)
    if failed_here:
        shown = f"feddbp experiment status {output.name} shows why"
        print(f"{PROG}: {quantity(len(failed_here), 'cell')} failed; {shown}", file=sys.stderr)
    return ExitCode.RUN_FAILED if failed or failed_here else ExitCode.OK


async def _use(executor: Executor, cells: list[Cell], output: OutputDir, where: ExecutionConfig) -> Runner:
    with _display(cells) as display:
        job = partial(_job, output=output, where=where)
        runner = Runner(output=output, cells=cells, executor=executor, display=display, job=job)
        stop_processes_at_signals(PROG, runner.stop)
        await runner.run()
    return runner


def _executor(where: ExecutionConfig) -> Executor:
    if where.executor == "ray":
        from feddbp_lab.experiments.run.ray_executor import RayExecutor

        return RayExecutor(address=where.ray_address, jobs=where.jobs)
    return LocalExecutor(jobs=where.local_jobs, cores=where.cores, gpus=where.gpus, memory=where.machine_memory)


def _job(cell: Cell, *, output: OutputDir, where: ExecutionConfig) -> CellJob:
    return CellJob(
        cell=cell,
        out=output.name if output.mirror else str(output.path.resolve()),
        data_dir=where.data_dir.resolve(),
        in_place=_works_in_place(output, where),
        work_dir=where.work_dir,
        keep_state=where.keep_state,
        track=where.track,
        lease_seconds=where.lease.total_seconds(),
        copy_rounds=where.copy_rounds,
    )


def _works_in_place(output: OutputDir, where: ExecutionConfig) -> bool:
    return output.mirror is None and where.executor == "local" and where.work_dir is None


def _display(cells: list[Cell]) -> LiveCellDisplay | PlainCellDisplay:
    console, workload = terminal(), Workload(cells)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveCellDisplay(workload=workload, console=console)
    return PlainCellDisplay(workload=workload, output=sys.stdout)
