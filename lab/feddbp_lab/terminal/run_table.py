"""The results of a run as a table: every client, the means over clients, traffic and time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from feddbp_common.artifacts import CURVES_NAME, METRICS_NAME, SERVER_LOCK_NAME, SUMMARY_NAME
from feddbp_common.evaluation import RoundAccuracy, accuracy_over_clients
from feddbp_common.file_lock import is_locked
from feddbp_common.humanize import NO_VALUE, client_names, human_bytes, human_seconds, id_ranges, percent, quantity
from feddbp_common.methods import method_named
from feddbp_lab.results.run_info import exchange_text
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
    results: RunResults,
    directory: Path,
    files: Sequence[str] = (SUMMARY_NAME, METRICS_NAME, CURVES_NAME),
    *,
    pictures: str = "",
) -> RenderableType:
    """`files` are those of the run in the directory, `pictures` says where its pictures are."""
    clients, totals = _clients_table(results), _totals(results, directory, files)
    if pictures:
        totals.add_row("pictures", Text(pictures, overflow="fold"))
    return Group(clients, Text(), totals)


def _clients_table(results: RunResults) -> Table:
    summary = results.summary
    rounds = {client["client"]: results.trained_rounds(client["client"]) for client in summary["per_client"]}
    all_alike = len({tuple(of_client) for of_client in rounds.values()}) <= 1
    table = plain_table(
        title=f"{method_named(summary['method']).title} on {summary['dataset']}, seed {summary['seed']}"
    )
    # a narrow terminal shortens words, never numbers
    table.add_column("client", justify="right", style="bold", no_wrap=True)
    named = any(client.get("name") for client in summary["per_client"])  # summaries of 0.1.0 have no names
    if named:
        table.add_column("name", overflow="ellipsis")
    table.add_column("architecture", overflow="ellipsis")
    table.add_column("classes", justify="right", no_wrap=True)
    table.add_column("samples", justify="right", no_wrap=True)
    if not all_alike:
        table.add_column("rounds", justify="right", no_wrap=True)
    table.add_column(_accuracy_title(summary["completed_rounds"], all_alike=all_alike), justify="right", no_wrap=True)
    for client in summary["per_client"]:
        table.add_row(
            str(client["client"]),
            *([Text(client.get("name") or NO_VALUE)] if named else []),
            client["architecture"] or NO_VALUE,
            str(client["classes_held"] or NO_VALUE),  # where clients do not tell their counts
            str(client["train_samples"] or NO_VALUE),
            *([] if all_alike else [_rounds_text(rounds[client["client"]])]),
            _first_and_last(results.accuracies(client["client"])),
        )
    return table


def _accuracy_title(rounds: int, *, all_alike: bool) -> str:
    if not all_alike:
        return "accuracy, first → last"
    return f"accuracy after 1 → {rounds} rounds" if rounds > 1 else "accuracy after 1 round"


def _rounds_text(rounds: Sequence[int]) -> str:
    """The rounds a client trained in: 4-10, or their number if there are gaps."""
    if not rounds:
        return NO_VALUE
    has_gaps = len(rounds) < rounds[-1] - rounds[0] + 1
    return f"{len(rounds)} of {id_ranges(range(rounds[0], rounds[-1] + 1))}" if has_gaps else id_ranges(rounds)


def _first_and_last(accuracies: dict[int, float]) -> Text:
    """After the client's first training and its last."""
    found = list(accuracies.values())
    if not found:
        return Text(NO_VALUE)
    last = Text(f"{percent(found[-1]):>7}", style="bold")
    return last if len(found) == 1 else Text.assemble((percent(found[0]), "dim"), (" → ", "dim"), last)


def _totals(results: RunResults, directory: Path, files: Sequence[str]) -> Table:
    summary = results.summary
    totals = Table.grid(padding=(0, 2))
    totals.add_column(style="dim", no_wrap=True)
    totals.add_column(overflow="fold")
    if summary["outcome"] in _FAILURES:
        totals.add_row("outcome", Text(f"{summary['outcome']}: {summary['reason']}", style="bold red"))
    elif summary["outcome"] != "finished":
        totals.add_row("so far", Text(_progress(summary, directory), style="bold yellow"))
    participants = summary.get("participants", {})
    if participants.get("trained_alone"):
        totals.add_row("alone", Text("one client trained alone: no other ever joined", style="bold red"))
    elif participants.get("never_joined") and summary["outcome"] != "waiting":
        totals.add_row("never joined", Text(client_names(participants["never_joined"]), style="yellow"))
    totals.add_row("accuracy", _accuracy(summary, "last"))
    totals.add_row("best", _accuracy(summary, "best"))
    if "chosen" in summary["accuracy"]:
        totals.add_row("by validation", _accuracy(summary, "chosen"))
    if exchange := exchange_text(summary["config"]):
        totals.add_row("exchange", Text(exchange))
    for number, sentence in enumerate(summary.get("privacy", ())):
        totals.add_row("" if number else "privacy", Text(sentence))
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


def _accuracy(summary: dict[str, Any], which: str) -> Text:
    point = summary["accuracy"][which]
    if point is None or point["round"] == 0:  # before training, an inference rule may lack its prototypes
        return Text(NO_VALUE)
    found = RoundAccuracy.from_dict(point)
    over = accuracy_over_clients(found.weighted, found.clients, summary["clients"], evaluated=found.evaluated)
    accuracy, separator, clients = over.partition(" over ")
    return Text.assemble(
        (accuracy, "bold green"),
        f"{separator}{clients}, by client {percent(found.unweighted)} ± {100 * found.deviation:.1f}",
        (f", after {quantity(found.round, 'round')}", "dim"),
    )
