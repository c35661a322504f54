"""The results of a run as a table: every client, the means over clients, traffic and time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from feddbp_common.artifacts import CURVES_NAME, METRICS_NAME, SERVER_LOCK_NAME, SUMMARY_NAME
from feddbp_common.file_lock import is_locked
from feddbp_common.humanize import NO_VALUE, human_bytes, human_seconds, percent
from feddbp_common.methods import method_named
from feddbp_lab.results.run_results import RunResults
from feddbp_lab.terminal.format import plain_table

_FAILURES: Final = ("failed", "stopped")
_PHASES: Final = {
    "waiting": "waiting for clients",
    "collecting": "training",
    "evaluating": "in the final evaluation",
}
"""Phases of a run that has not ended, where people have other words for them."""


def run_table(
    results: RunResults, directory: Path, files: Sequence[str] = (SUMMARY_NAME, METRICS_NAME, CURVES_NAME)
) -> RenderableType:
    """`files` are those of the run in the directory."""
    return Group(_clients_table(results), Text(), _totals(results, directory, files))


def _clients_table(results: RunResults) -> Table:
    summary = results.summary
    rounds = summary["completed_rounds"]
    span = f"after 1 → {rounds} rounds" if rounds > 1 else "after 1 round"
    table = plain_table(
        title=f"{method_named(summary['method']).title} on {summary['dataset']}, seed {summary['seed']}"
    )
    table.add_column("client", justify="right", style="bold")
    table.add_column("architecture", no_wrap=True, overflow="ellipsis")
    table.add_column("classes", justify="right")
    table.add_column("samples", justify="right")
    table.add_column(f"accuracy {span}", justify="right", no_wrap=True)
    for client in summary["per_client"]:
        table.add_row(
            str(client["client"]),
            client["architecture"] or NO_VALUE,
            str(client["classes_held"]),
            str(client["train_samples"]),
            _first_and_last(results.accuracies(client["client"])),
        )
    return table


def _first_and_last(accuracies: dict[int, float]) -> Text:
    """After the first training and the last: before training, an inference rule may lack its prototypes."""
    trained = [accuracy for number, accuracy in accuracies.items() if number > 0]
    if not trained:
        return Text(NO_VALUE)
    last = Text(f"{percent(trained[-1]):>7}", style="bold")
    return last if len(trained) == 1 else Text.assemble((percent(trained[0]), "dim"), (" → ", "dim"), last)


def _totals(results: RunResults, directory: Path, files: Sequence[str]) -> Table:
    summary = results.summary
    totals = Table.grid(padding=(0, 2))
    totals.add_column(style="dim", no_wrap=True)
    totals.add_column(overflow="fold")
    if summary["outcome"] in _FAILURES:
        totals.add_row("outcome", Text(f"{summary['outcome']}: {summary['reason']}", style="bold red"))
    elif summary["outcome"] != "finished":
        totals.add_row("so far", Text(_progress(summary, directory), style="bold yellow"))
    totals.add_row("mean accuracy", _accuracy(summary["accuracy"]["last"]))
    totals.add_row("best", _accuracy(summary["accuracy"]["best"]))
    if "chosen" in summary["accuracy"]:
        totals.add_row("by validation", _accuracy(summary["accuracy"]["chosen"]))
    totals.add_row("traffic", f"{human_bytes(summary['bytes_up'])} up, {human_bytes(summary['bytes_down'])} down")
    totals.add_row("time", human_seconds(summary["seconds"]))
    if summary["prototypes_sha256"]:
        totals.add_row("sha256", Text(summary["prototypes_sha256"], overflow="fold"))
    totals.add_row("files", Text(f"{directory}/: {', '.join(files)}", overflow="fold"))
    return totals


def _progress(summary: dict[str, Any], directory: Path) -> str:
    """Where a run is that has not ended, and whether its server runs."""
    phase = _PHASES.get(summary["outcome"], summary["outcome"])
    text = f"{summary['completed_rounds']} of {summary['rounds']} rounds, {phase}"
    return text if is_locked(directory / SERVER_LOCK_NAME) else f"{text}; its server is not running"


def _accuracy(point: dict[str, Any] | None) -> Text:
    if point is None or point["round"] == 0:  # before training, an inference rule may lack its prototypes
        return Text(NO_VALUE)
    return Text.assemble(
        (percent(point["weighted"]), "bold green"),
        f" by samples, {percent(point['unweighted'])} by clients (± {100 * point['std_over_clients']:.1f})",
        (f", after {point['round']} round{'' if point['round'] == 1 else 's'}", "dim"),
    )
