"""`feddbp demo`: runs a federation on this machine, shows its progress, and writes its results."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import sys
import webbrowser
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from feddbp_common.artifacts import CURVES_NAME, METRICS_NAME, SUMMARY_NAME
from feddbp_common.config.command_line import settings_from, settings_parser
from feddbp_common.config.dry_run import print_options
from feddbp_common.config.privacy_text import server_view
from feddbp_common.errors import ConfigurationError, ExitCode
from feddbp_common.humanize import quantity
from feddbp_common.optional_deps import DASHBOARD_MODULES, require
from feddbp_lab.commands.options import DemoConfig, LocalConfig
from feddbp_lab.dashboard.process import DashboardProcess
from feddbp_lab.processes.federation_options import FederationOptions
from feddbp_lab.processes.local_federation import LocalFederation, ProcessFailedError, require_lab
from feddbp_lab.processes.signals import stop_processes_at_signals
from feddbp_lab.results.curves import draw_curves
from feddbp_lab.results.run_results import MetricsTail, RunResults
from feddbp_lab.terminal.format import print_whole, terminal
from feddbp_lab.terminal.lines import PlainDisplay, SilentDisplay
from feddbp_lab.terminal.live import LiveDisplay
from feddbp_lab.terminal.next_steps import next_steps
from feddbp_lab.terminal.run_table import run_table
from feddbp_lab.trackers.sinks import sink_for

PROG: Final = "feddbp demo"
RUNS: Final = Path("runs")
Display = LiveDisplay | PlainDisplay | SilentDisplay


def command(argv: Sequence[str]) -> int:
    parser = settings_parser(
        PROG, "Runs a server and its clients on this machine and shows their progress.", DemoConfig
    )
    config = settings_from(DemoConfig, parser.parse_args(argv))
    if config.here.dry_run:
        print_options(config, config.here.dry_run_format)
        return ExitCode.OK
    require_lab("the demo")
    if config.here.dashboard:
        require("the dashboard", DASHBOARD_MODULES, extra="dashboard")
    for tracker in config.here.track:
        sink_for(tracker)  # refuses an unknown one before anything is created
    options = FederationOptions(
        run=config.run.as_run(),
        directory=output_directory(config),
        processes=config.processes,
        data_dir=config.here.data_dir,
        device=config.here.device,
        frozen_weights=config.here.frozen_weights,
        share_prototypes=True,  # to whoever runs all of its clients, too
        track=config.here.track,
    )
    return asyncio.run(_run_until_signal(options, config.here))


def output_directory(config: DemoConfig) -> Path:
    """A new directory, or an empty one: results of two runs must not mix."""
    out = config.here.out
    try:
        if out is None:
            return _new_directory(f"demo-{config.run.method}-{config.run.data.dataset}")
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise ConfigurationError(f"--out: {out} is not empty; give another directory, or none")
    except OSError as error:
        raise ConfigurationError(f"--out: {error.filename}: {error.strerror}") from None
    return out


def _new_directory(name: str) -> Path:
    RUNS.mkdir(exist_ok=True)
    for suffix in itertools.chain(("",), (f"-{number}" for number in itertools.count(2))):
        try:
            # mkdir as the check: another demo may be looking for a directory at the same time
            (RUNS / (name + suffix)).mkdir()
        except FileExistsError:
            continue
        return RUNS / (name + suffix)
    raise AssertionError("unreachable: itertools.count has no end")


async def _run_until_signal(options: FederationOptions, here: LocalConfig) -> int:
    """Runs the demo until it ends or a signal cancels it, which stops every process; a second signal kills them."""
    demo = asyncio.current_task()
    assert demo is not None
    stop_processes_at_signals(PROG, demo.cancel)
    try:
        async with AsyncExitStack() as stack:
            return await _run(options, here, stack)
    except asyncio.CancelledError:
        stopped = "interrupted, every process is stopped; a demo is not resumed, run it again with another --out"
        print(f"{PROG}: {stopped} (logs are in {options.directory})", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except ProcessFailedError as error:
        # without a reason, such as after a kill, the last lines may tell
        context = () if error.reason else error.last_lines
        print(*context, f"{PROG}: error: {error}", sep="\n", file=sys.stderr)
        return error.code


async def _run(options: FederationOptions, here: LocalConfig, stack: AsyncExitStack) -> int:
    console, as_json = terminal(), here.json_output
    page: DashboardProcess | None = None
    with _display(options, console, as_json=as_json) as display:
        async with LocalFederation(options) as federation, aclosing(federation.statuses()) as statuses:
            if here.dashboard:
                # in the outer stack: the page outlives the federation
                page = await stack.enter_async_context(_dashboard(options, federation.address))
                _announce(page, console)
            async for status in statuses:
                display.show(status)
        summary = federation.summary()
    results = _collect_results(options)
    if as_json:
        print(json.dumps(summary, indent=2))
    else:
        print_whole(run_table(results, options.directory))
        if summary["outcome"] == "finished":
            # not by the console, which would wrap what is to be copied
            print(next_steps(options.directory, method=options.run.method), flush=True)
        if seen := server_view(options.run):
            print_whole(Text(f"\n{seen}"))
    if page is not None and console.is_terminal:
        print(f"\nThe page stays at {page.address}\nuntil Ctrl-C.", flush=True)
        await page.exited()
    return ExitCode.OK if summary["outcome"] == "finished" else ExitCode.RUN_FAILED


def _dashboard(options: FederationOptions, server: str) -> DashboardProcess:
    return DashboardProcess(options.directory, server, certs=options.credentials.certs)


def _announce(page: DashboardProcess, console: Console) -> None:
    # on stderr, which --json leaves to people; not by the console, which would wrap the address
    print(f"{PROG}: the page of this run is {page.address}", file=sys.stderr, flush=True)
    if console.is_terminal:
        webbrowser.open(page.address)


def _display(options: FederationOptions, console: Console, *, as_json: bool) -> Display:
    run = options.run
    size = f"{quantity(run.clients, 'client')}, {quantity(run.rounds, 'round')}"
    title = f"{run.method_spec.title} on {run.data.dataset}: {size}, seed {run.seed}"
    if as_json:
        return SilentDisplay()
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveDisplay(console=console, title=title)
    metrics = MetricsTail(options.server_dir / METRICS_NAME)
    return PlainDisplay(output=sys.stdout, title=title, run=run, metrics=metrics)


def _collect_results(options: FederationOptions) -> RunResults:
    # a run that was stopped before the first report has no metrics file
    (options.server_dir / METRICS_NAME).touch()
    for name in (SUMMARY_NAME, METRICS_NAME):
        shutil.copyfile(options.server_dir / name, options.directory / name)
    results = RunResults.read(options.directory)
    draw_curves(results, options.directory / CURVES_NAME)
    return results
