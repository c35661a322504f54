"""Finished cells in a small form: what a report needs, in tens of kilobytes, to keep under version control."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, Final

from feddbp_common.artifacts import CELL_CONFIG_NAME, CELL_COST_NAME, PACKED_METRICS_NAME, SUMMARY_NAME
from feddbp_common.atomic_files import commit_file, replace_text
from feddbp_common.config.nested import dotted, first_difference, without
from feddbp_common.errors import ConfigurationError
from feddbp_lab.experiments.plan import Plan
from feddbp_lab.experiments.run.cell_dir import CellDir, CellState
from feddbp_lab.experiments.run.output_dir import OutputDir
from feddbp_lab.experiments.run.planning import check_same_options, started_seeds
from feddbp_lab.results.damage import DAMAGE, problem_of
from feddbp_lab.results.run_results import has_trained, read_object

_LEFT_OUT: Final = ("losses", "seconds")
"""Of a line of metrics: no table or figure of a report shows them."""


def pack(source: OutputDir, target: OutputDir) -> list[str]:
    """Adds the finished cells of `source` that `target` lacks, and its plans; returns the ids of the added cells.

    Both stay output directories: a report can be made of them, and an experiment continues in them. A plan keeps the
    seeds that `target` has results of.
    """
    if source.path.resolve() == target.path.resolve():
        raise ConfigurationError(f"{target.path} is the directory to pack; name another one for the packed cells")
    with target.use(), target.planning():
        plans = [_with_kept_seeds(plan, source, target) for plan in source.plans()]
        added = [
            cell_id
            for cell_id in dict.fromkeys(cell_id for plan in plans for cell_id in plan.cell_ids)
            if source.cell_dir(cell_id).state is CellState.DONE and target.cell_dir(cell_id).state is not CellState.DONE
        ]
        for cell_id in added:
            _pack_cell(source.cell_dir(cell_id), target.cell_dir(cell_id).path)
        for plan in plans:
            target.save_plan(plan)
            target.update_planned_cells(plan, source)
    return added


def _with_kept_seeds(plan: Plan, source: OutputDir, target: OutputDir) -> Plan:
    """The plan with the seeds that were packed earlier, which the report shows together."""
    kept = target.plan(plan.name)
    if kept is None:
        return plan
    check_same_options(kept, plan, target, remedy="pack it into another directory")
    seeds = [seed for seed in started_seeds(kept, target) if seed not in plan.seeds]
    if not seeds:
        return plan
    if not plan.is_extended_by(kept):
        names = ", ".join(map(str, seeds))
        raise ConfigurationError(
            f"{target.name} holds {plan.name} with seed {names}, which this one lacks, and {plan.name} has changed "
            f"since; run feddbp experiment plan with these seeds, too, or pack it into another directory"
        )
    _check_same_runs(plan, source, kept, target)
    return plan.with_seeds_of(kept, seeds)


def _check_same_runs(plan: Plan, source: OutputDir, kept: Plan, target: OutputDir) -> None:
    """Raises ConfigurationError unless cells that would share a row of the report differ in their seed alone."""
    configs, kept_configs = source.configs(plan), target.configs(kept)
    for ours, theirs in plan.matching_cells(kept):
        ours, theirs = [cell for cell in ours if cell in configs], [cell for cell in theirs if cell in kept_configs]
        if not ours or not theirs:
            continue  # nothing of it was run
        here, there = (without(config, ("seed",)) for config in (configs[ours[0]], kept_configs[theirs[0]]))
        if (name := first_difference(here, there)) is not None:
            raise ConfigurationError(
                f"{target.name} holds {plan.name} with other options: {name} is {dotted(there).get(name)!r} in "
                f"{theirs[0]}, not {dotted(here).get(name)!r} as in {ours[0]}; pack it into another directory"
            )


def _pack_cell(source: CellDir, target: Path) -> None:
    # everything is parsed before the first file is copied: a packed cell is never replaced
    metrics = source.results().metrics
    source.config()
    _check_cost(source.path / CELL_COST_NAME)
    target.mkdir(parents=True, exist_ok=True)
    for name in (CELL_CONFIG_NAME, CELL_COST_NAME):
        if (source.path / name).exists():
            replace_text(target / name, (source.path / name).read_text(encoding="utf-8"))
    partial = target / f"{PACKED_METRICS_NAME}.part"
    # no time and no name in the header: the same results are the same bytes
    partial.write_bytes(gzip.compress("".join(map(_packed_line, metrics)).encode(), mtime=0))
    commit_file(partial, target / PACKED_METRICS_NAME)
    # last: it marks the cell as done
    replace_text(target / SUMMARY_NAME, (source.path / SUMMARY_NAME).read_text(encoding="utf-8"))


def _check_cost(path: Path) -> None:
    """Raises ConfigurationError for a file that cannot be read; the results do not depend on it."""
    try:
        if path.exists():
            read_object(path)
    except DAMAGE as error:
        raise ConfigurationError(
            f"{path} is damaged: {problem_of(error)}; remove it to pack the cell without its CPU time"
        ) from None


def _packed_line(line: dict[str, Any]) -> str:
    kept = {name: {} if name in _LEFT_OUT else value for name, value in line.items()}
    # which evaluations count depends on it
    kept["trained"] = has_trained(line)
    return json.dumps(kept, separators=(",", ":")) + "\n"
