"""Runs side by side as tables: their results, their curves, their clients, and the settings in which they differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from feddbp_common.evaluation import RoundAccuracy, share_of_clients
from feddbp_common.humanize import NO_VALUE, human_bytes, human_seconds, percent
from feddbp_lab.results.comparison import ComparedRun, Comparison
from feddbp_lab.terminal.format import plain_table

_SHOWN_CLIENTS: Final = 20
_WIDE: Final = 96
_MEDIUM: Final = 64
_ROUND_WIDTH: Final = 10
_NAME_WIDTH: Final = 24


def comparison_view(comparison: Comparison, *, width: int) -> Iterator[RenderableType]:
    yield _results_table(comparison, width)
    yield from _whole_names(comparison)
    rounds = comparison.shown_rounds(max(2, min(8, (width - _NAME_WIDTH) // _ROUND_WIDTH)))
    if rounds:
        yield Text()
        yield _curves_table(comparison, rounds)
    if comparison.common_clients and len(comparison.common_clients) <= _SHOWN_CLIENTS:
        yield Text()
        yield _clients_table(comparison)
    yield Text()
    yield from _differences(comparison)
    yield from _settings(comparison)
    for caution in comparison.cautions():
        yield Text.assemble(("note  ", "bold yellow"), caution)


def _results_table(comparison: Comparison, width: int) -> Table:
    table = plain_table()
    table.add_column("run", overflow="fold", max_width=_NAME_WIDTH)
    table.add_column("accuracy", justify="right", no_wrap=True)
    table.add_column("over", justify="right")
    if width >= _MEDIUM:
        table.add_column("by client", justify="right", no_wrap=True)
        table.add_column("best", justify="right", no_wrap=True)
    if width >= _WIDE:
        for title in ("rounds", "traffic", "time"):
            table.add_column(title, justify="right", no_wrap=True)
    for run in comparison.runs:
        table.add_row(*_result_row(run, comparison.labels[run.name], width))
    return table


def _whole_names(comparison: Comparison) -> Iterator[Text]:
    """The names of runs that tables show in part."""
    shown = [(label, name) for name, label in comparison.labels.items() if label != name]
    if shown:
        yield Text()
    for label, name in shown:
        yield Text.assemble((f"{label}  ", "bold"), (name, "dim"))


def _result_row(run: ComparedRun, label: str, width: int) -> list[Text | str]:
    summary, last, best = run.summary, run.last, run.best
    row: list[Text | str] = [
        Text(label),
        Text(percent(last.weighted if last else None), style="bold"),
        share_of_clients(last.clients, summary["clients"]).removesuffix(" clients") if last else NO_VALUE,
    ]
    if width >= _MEDIUM:
        row += [f"{percent(last.unweighted)} ± {100 * last.deviation:.1f}" if last else NO_VALUE, _best(best)]
    if width >= _WIDE:
        traffic = human_bytes(summary["bytes_up"] + summary["bytes_down"])
        row += [f"{summary['completed_rounds']}/{summary['rounds']}", traffic, human_seconds(summary["seconds"])]
    return row


def _best(best: RoundAccuracy | None) -> str:
    return NO_VALUE if best is None else f"{percent(best.weighted)} ({best.round})"


def _curves_table(comparison: Comparison, rounds: list[int]) -> Table:
    table = plain_table()
    table.add_column("after rounds", overflow="fold", max_width=_NAME_WIDTH)
    for number in rounds:
        table.add_column(str(number), justify="right", no_wrap=True)
    for run in comparison.runs:
        table.add_row(Text(comparison.labels[run.name]), *(percent(run.curve[number]) for number in rounds))
    return table


def _clients_table(comparison: Comparison) -> Table:
    table = plain_table()
    table.add_column("client", justify="right", style="bold")
    for run in comparison.runs:
        table.add_column(Text(comparison.labels[run.name]), justify="right", overflow="fold")
    accuracies = [run.clients for run in comparison.runs]
    for client in comparison.common_clients:
        highest = max(found[client] for found in accuracies)
        table.add_row(
            str(client),
            *(Text(percent(found[client]), style="bold" if found[client] == highest else "") for found in accuracies),
        )
    return table


def _differences(comparison: Comparison) -> Iterator[Text]:
    first, *others = comparison.runs
    names = comparison.labels
    for run in others:
        found = comparison.difference(run)
        if found is not None:
            counts = f"better on {found.better}, worse on {found.worse}, equal on {found.equal} clients"
            mean = f"mean difference {round(found.mean, 1) + 0.0:+.1f} points"
            yield Text(f"{names[run.name]} against {names[first.name]}: {counts}; {mean}")


def _settings(comparison: Comparison) -> Iterator[Text]:
    for name, values in comparison.differing().items():
        yield Text.assemble(("differs  ", "dim"), f"{name}: {', '.join(map(_value, values))}")


def _value(value: Any) -> str:
    return "default" if value is None else str(value)
