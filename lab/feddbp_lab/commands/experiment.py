"""`feddbp experiment`: runs grids of federations, shows their progress, and writes tables and figures."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from feddbp_common.config.command_line import Parser, add_settings, settings_from
from feddbp_common.errors import ExitCode
from feddbp_lab.experiments.config import ExperimentConfig
from feddbp_lab.experiments.expansion import expand, seeds_of
from feddbp_lab.experiments.profiles import PROFILES
from feddbp_lab.experiments.report.build import write_report
from feddbp_lab.experiments.run.campaign import run_campaign
from feddbp_lab.experiments.run.cell_table import as_dict, print_status, watch_status
from feddbp_lab.experiments.run.output_dir import OutputDir
from feddbp_lab.experiments.run.packing import pack
from feddbp_lab.experiments.spec import BUILT_IN, load_experiment
from feddbp_lab.processes.local_federation import require_lab
from feddbp_lab.terminal.format import plain_table

PROG: Final = "feddbp experiment"


def command(argv: Sequence[str]) -> int:
    flags = _parser().parse_args(argv)
    act: Callable[[argparse.Namespace], int] = flags.act
    return act(flags)


def _run(flags: argparse.Namespace) -> int:
    return run_campaign(flags.experiment, settings_from(ExperimentConfig, flags), only=flags.only)


def _status(flags: argparse.Namespace) -> int:
    output = OutputDir.open_existing(flags.directory)
    if flags.as_json:
        print(json.dumps(as_dict(output), indent=2))
    elif flags.watch:
        watch_status(output, Console())
    else:
        print_status(output, Console())
    return ExitCode.OK


def _report(flags: argparse.Namespace) -> int:
    require_lab("a report")
    print(write_report(OutputDir.open_existing(flags.directory)))
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
    Console().print(table, Text(f"Profiles:\n{profiles}", style="dim"), sep="\n")
    return ExitCode.OK


def _parser() -> Parser:
    parser = Parser(prog=PROG, description="Runs grids of federations and writes tables and figures of their results.")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def action(name: str, summary: str, act: Callable[[argparse.Namespace], int]) -> Parser:
        added: Parser = actions.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        added.set_defaults(act=act)
        return added

    run = action("run", "run or resume an experiment", _run)
    run.usage = f"{PROG} run NAME|FILE.toml --out DIR [options]"
    run.add_argument("experiment", metavar="NAME|FILE.toml", help=f"{', '.join(BUILT_IN)}, or a file of your own")
    run.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORD,...",
        help="run only cells with one of these words in their name; repeat it to narrow further",
    )
    add_settings(run, ExperimentConfig)
    status = action("status", "show which cells are done, running, failed or waiting", _status)
    status.add_argument("directory", type=Path, metavar="DIR", help="the --out directory of an experiment")
    form = status.add_mutually_exclusive_group()
    form.add_argument("--watch", action="store_true", help="refresh until the runner has ended")
    form.add_argument("--json", action="store_true", dest="as_json", help="as JSON, with the accuracy of every cell")
    report = action("report", "write tables, figures and a page of the results so far", _report)
    report.add_argument("directory", type=Path, metavar="DIR", help="the --out directory of an experiment")
    packing = action("pack", "copy finished cells in a small form, to keep or to continue elsewhere", _pack)
    packing.add_argument("directory", type=Path, metavar="DIR", help="the --out directory of an experiment")
    packing.add_argument("target", type=Path, metavar="TARGET", help="the directory for the packed cells")
    action("list", "list the built-in experiments and the profiles", _list)
    return parser
