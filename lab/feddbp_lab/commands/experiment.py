"""`feddbp experiment`: runs grids of federations, shows their progress, and writes tables and figures."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rich.text import Text

from feddbp_common.config.command_line import Parser, add_settings, settings_from
from feddbp_common.errors import ExitCode
from feddbp_lab.experiments.config import CellConfig, ExperimentConfig, PlanConfig
from feddbp_lab.experiments.expansion import expand, seeds_of
from feddbp_lab.experiments.profiles import PROFILES
from feddbp_lab.experiments.report.build import write_report
from feddbp_lab.experiments.run.campaign import plan_campaign, run_campaign, run_cell
from feddbp_lab.experiments.run.cell_table import as_dict, print_status, watch_status
from feddbp_lab.experiments.run.output_dir import OutputDir
from feddbp_lab.experiments.run.packing import pack
from feddbp_lab.experiments.spec import BUILT_IN, load_experiment
from feddbp_lab.processes.local_federation import require_lab
from feddbp_lab.terminal.format import plain_table, terminal

PROG: Final = "feddbp experiment"


def command(argv: Sequence[str]) -> int:
    flags = _parser().parse_args(argv)
    act: Callable[[argparse.Namespace], int] = flags.act
    return act(flags)


def _run(flags: argparse.Namespace) -> int:
    return run_campaign(flags.experiment, settings_from(ExperimentConfig, flags), only=flags.only)


def _plan(flags: argparse.Namespace) -> int:
    config = settings_from(PlanConfig, flags)
    return plan_campaign(flags.experiment, config.what, config.cell)


def _cell(flags: argparse.Namespace) -> int:
    config = settings_from(CellConfig, flags)
    return run_cell(flags.directory, flags.index, flags.experiment, config.where, config.cell)


def _status(flags: argparse.Namespace) -> int:
    output = OutputDir.open_existing(flags.directory)
    if flags.as_json:
        print(json.dumps(as_dict(output), indent=2))
    elif flags.watch:
        watch_status(output, terminal())
    else:
        print_status(output, terminal())
    return ExitCode.OK


def _report(flags: argparse.Namespace) -> int:
    require_lab("a report")
    output = OutputDir.open_existing(flags.directory)
    with output.planning():
        path = write_report(output)
        print(output.publish_report() if output.mirror else path)
    return ExitCode.OK


def _pack(flags: argparse.Namespace) -> int:
    added = pack(OutputDir.open_existing(flags.directory), OutputDir(flags.target))
    print(f"{flags.target}: {len(added)} cell{'s' if len(added) != 1 else ''} added")
    return ExitCode.OK


def _list(_: argparse.Namespace) -> int:
    table = plain_table("name", "cells", "title")
    for name in BUILT_IN:
        spec = load_experiment(name)
        cells = expand(spec, seeds=seeds_of(spec, "quick"), profile="quick").cells
        table.add_row(Text(name, style="bold"), str(len(cells)), spec.title)
    profiles = "\n".join(f"  {name:<6} {profile.title}" for name, profile in PROFILES.items())
    terminal().print(table, Text(f"Profiles:\n{profiles}", style="dim"), sep="\n")
    return ExitCode.OK


def _parser() -> Parser:
    parser = Parser(prog=PROG, description="Runs grids of federations and writes tables and figures of their results.")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def action(name: str, summary: str, act: Callable[[argparse.Namespace], int]) -> Parser:
        added: Parser = actions.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        added.set_defaults(act=act)
        return added

    run = action("run", "run or resume an experiment", _run)
    plan = action("plan", "save what an experiment consists of, for runners that take cells by their index", _plan)
    for name, added in (("run", run), ("plan", plan)):
        added.usage = f"{PROG} {name} NAME|FILE.toml --out DIR [options]"
        added.add_argument("experiment", metavar="NAME|FILE.toml", help=f"{', '.join(BUILT_IN)}, or a file of your own")
    add_settings(plan, PlanConfig)
    run.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORD,...",
        help="run only cells with one of these words in their name; repeat it to narrow further",
    )
    add_settings(run, ExperimentConfig)
    cell = action("cell", "run one cell of a plan by its index, for schedulers with job arrays", _cell)
    cell.usage = f"{PROG} cell DIR --index N [options]"
    _add_directory(cell)
    cell.add_argument("--index", type=int, required=True, metavar="N", help="the cell, from 0")
    cell.add_argument("--experiment", metavar="NAME", help="the experiment, if DIR holds several")
    add_settings(cell, CellConfig)
    status = action("status", "show which cells are done, running, failed or waiting", _status)
    _add_directory(status)
    form = status.add_mutually_exclusive_group()
    form.add_argument("--watch", action="store_true", help="refresh until the runner has ended")
    form.add_argument("--json", action="store_true", dest="as_json", help="as JSON, with the accuracy of every cell")
    report = action("report", "write tables, figures and a page of the results so far", _report)
    _add_directory(report)
    packing = action("pack", "copy finished cells in a small form, to keep or to continue elsewhere", _pack)
    _add_directory(packing)
    packing.add_argument("target", type=Path, metavar="TARGET", help="the directory for the packed cells")
    action("list", "list the built-in experiments and the profiles", _list)
    return parser


def _add_directory(parser: Parser) -> None:
    parser.add_argument("directory", metavar="DIR", help="the --out of an experiment")
