"""`feddbp experiment`: runs grids of federations, shows their progress, and writes tables and figures.

What an action needs is imported when it is chosen: the options of runs alone take a third of a second.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from feddbp_common.config.command_line import Parser, add_settings, settings_from
from feddbp_common.errors import ExitCode
from feddbp_common.humanize import quantity
from feddbp_lab.commands.actions import chosen_action

PROG: Final = "feddbp experiment"


@dataclass(frozen=True)
class _Action:
    summary: str
    add_options: Callable[[Parser], None]
    act: Callable[[argparse.Namespace], int]


def command(argv: Sequence[str]) -> int:
    name, rest = chosen_action(
        PROG,
        argv,
        {name: action.summary for name, action in _ACTIONS.items()},
        description="Runs grids of federations and writes tables and figures of their results.",
    )
    action = _ACTIONS[name]
    parser = Parser(prog=f"{PROG} {name}", description=action.summary, allow_abbrev=False)
    action.add_options(parser)
    return action.act(parser.parse_args(rest))


# --- run, plan and cell ---


def _add_run_options(parser: Parser) -> None:
    from feddbp_lab.experiments.config import ExperimentConfig

    _add_experiment(parser)
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORD,...",
        help="run only cells with one of these words in their name; repeat it to narrow further",
    )
    add_settings(parser, ExperimentConfig)


def _run(flags: argparse.Namespace) -> int:
    from feddbp_lab.experiments.config import ExperimentConfig
    from feddbp_lab.experiments.run.campaign import run_campaign

    return run_campaign(flags.experiment, settings_from(ExperimentConfig, flags), only=flags.only)


def _add_plan_options(parser: Parser) -> None:
    from feddbp_lab.experiments.config import PlanConfig

    _add_experiment(parser)
    add_settings(parser, PlanConfig)


def _plan(flags: argparse.Namespace) -> int:
    from feddbp_lab.experiments.config import PlanConfig
    from feddbp_lab.experiments.run.campaign import plan_campaign

    config = settings_from(PlanConfig, flags)
    return plan_campaign(flags.experiment, config.what, config.cell)


def _add_cell_options(parser: Parser) -> None:
    from feddbp_lab.experiments.config import CellConfig

    parser.usage = f"{parser.prog} DIR --index N [options]"
    _add_directory(parser)
    parser.add_argument("--index", type=int, required=True, metavar="N", help="the cell, from 0")
    parser.add_argument("--experiment", metavar="NAME", help="the experiment, if DIR holds several")
    add_settings(parser, CellConfig)


def _cell(flags: argparse.Namespace) -> int:
    from feddbp_lab.experiments.config import CellConfig
    from feddbp_lab.experiments.run.campaign import run_cell

    config = settings_from(CellConfig, flags)
    return run_cell(flags.directory, flags.index, flags.experiment, config.where, config.cell)


def _add_experiment(parser: Parser) -> None:
    from feddbp_lab.experiments.spec import BUILT_IN

    parser.usage = f"{parser.prog} NAME|FILE.toml --out DIR [options]"
    parser.add_argument("experiment", metavar="NAME|FILE.toml", help=f"{', '.join(BUILT_IN)}, or a file of your own")


# --- results ---


def _add_directory(parser: Parser) -> None:
    parser.add_argument("directory", metavar="DIR", help="the --out of an experiment")


def _add_status_options(parser: Parser) -> None:
    _add_directory(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--watch", action="store_true", help="refresh until the runner has ended")
    form.add_argument("--json", action="store_true", dest="as_json", help="as JSON, with the accuracy of every cell")


def _status(flags: argparse.Namespace) -> int:
    import json

    from feddbp_lab.experiments.run.cell_table import as_dict, print_status, watch_status
    from feddbp_lab.experiments.run.output_dir import OutputDir
    from feddbp_lab.terminal.format import terminal

    output = OutputDir.open_existing(flags.directory)
    if flags.as_json:
        print(json.dumps(as_dict(output), indent=2))
    elif flags.watch:
        watch_status(output, terminal())
    else:
        print_status(output, terminal())
    return ExitCode.OK


def _report(flags: argparse.Namespace) -> int:
    from feddbp_lab.experiments.report.build import write_report
    from feddbp_lab.experiments.run.campaign import print_damaged
    from feddbp_lab.experiments.run.output_dir import OutputDir
    from feddbp_lab.processes.local_federation import require_lab

    require_lab("a report")
    output = OutputDir.open_existing(flags.directory)
    with output.planning():
        report = write_report(output)
        print(output.publish_report() if output.mirror else report.page, flush=True)
    print_damaged(report)
    return ExitCode.RUN_FAILED if report.damaged else ExitCode.OK


def _add_pack_options(parser: Parser) -> None:
    _add_directory(parser)
    parser.add_argument("target", type=Path, metavar="TARGET", help="the directory for the packed cells")


def _pack(flags: argparse.Namespace) -> int:
    from feddbp_lab.experiments.run.output_dir import OutputDir
    from feddbp_lab.experiments.run.packing import pack

    added = pack(OutputDir.open_existing(flags.directory), OutputDir(flags.target))
    print(f"{flags.target}: {quantity(len(added), 'cell')} added")
    return ExitCode.OK


def _list(_: argparse.Namespace) -> int:
    from rich.text import Text

    from feddbp_lab.experiments.expansion import expand, seeds_of
    from feddbp_lab.experiments.profiles import PROFILES
    from feddbp_lab.experiments.spec import BUILT_IN, load_experiment
    from feddbp_lab.terminal.format import plain_table, terminal

    table = plain_table("name", "cells", "title")
    for name in BUILT_IN:
        spec = load_experiment(name)
        cells = expand(spec, seeds=seeds_of(spec, "quick"), profile="quick").cells
        table.add_row(Text(name, style="bold"), str(len(cells)), spec.title)
    profiles = "\n".join(f"  {name:<6} {profile.title}" for name, profile in PROFILES.items())
    terminal().print(table, Text(f"Profiles:\n{profiles}", style="dim"), sep="\n")
    return ExitCode.OK


_ACTIONS: Final = MappingProxyType(
    {
        "run": _Action("run or resume an experiment", _add_run_options, _run),
        "plan": _Action(
            "save what an experiment consists of, for runners that take cells by their index", _add_plan_options, _plan
        ),
        "cell": _Action(
            "run one cell of a plan by its index, for schedulers with job arrays", _add_cell_options, _cell
        ),
        "status": _Action("show which cells are done, running, failed or waiting", _add_status_options, _status),
        "report": _Action("write tables, figures and a page of the results so far", _add_directory, _report),
        "pack": _Action(
            "copy finished cells in a small form, to keep or to continue elsewhere", _add_pack_options, _pack
        ),
        "list": _Action("list the built-in experiments and the profiles", lambda _: None, _list),
    }
)
