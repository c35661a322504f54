"""The curves of a run as a PNG: accuracy of every client and their mean, and the terms of the loss."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from feddbp_common.evaluation import share_of_clients
from feddbp_common.methods import method_named
from feddbp_common.printable import printable
from feddbp_lab.results.run_results import RunResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette: distinguishable for colour-blind readers and in grey
COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#A5A13A", "#7A5C99")
DASHES: Final = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
STYLE: Final[dict[Any, Any]] = {
    "text.parse_math": False,  # names come from clients, and `$` in one is no formula
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.4,
    "grid.alpha": 0.4,
    "legend.fontsize": 6.8,
    "legend.frameon": False,
    "legend.handlelength": 1.5,
    "legend.handletextpad": 0.5,
    "legend.columnspacing": 1.0,
    "lines.solid_capstyle": "round",
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
}
INK: Final = "#1a1a1a"
"""The colour of text, axes and the highlighted line for print; a page replaces it by its own text colour."""
PRINT_STYLE: Final[dict[Any, Any]] = {
    **STYLE,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    # a fixed salt: the same numbers give the same file, and equal ids within a page mean equal content
    "svg.hashsalt": "feddbp",
}
_NAMED_CLIENTS: Final = 10
"""With more clients, all are drawn in grey: twenty colours cannot be distinguished."""
_TERMS_IN_A_COLUMN: Final = 8
"""Of a loss: their names are long, but more of them leave the picture no room."""
_LONGEST_LABEL: Final = 80
_MARKED_ROUNDS: Final = 25
"""With more rounds, the points are not marked."""


def plot_text(text: str, limit: int = _LONGEST_LABEL) -> str:
    """Text for a picture; a label that begins with an underscore would be left out of the legend."""
    return printable(text, limit).removeprefix("_")


def draw_curves(results: RunResults, path: Path) -> None:
    # takes a second to import
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        # not by pyplot, which keeps figures alive and looks for a display; a bare figure is saved as PNG by Agg
        figure = Figure(figsize=(7.2, 3.5), layout="constrained")
        accuracy, loss = figure.subplots(1, 2)
        _draw_accuracy(accuracy, results)
        _draw_losses(loss, results)
        _finish(accuracy, legend_columns=3)
        _finish(loss, legend_columns=1 if len(loss.lines) <= _TERMS_IN_A_COLUMN else 3)
        figure.savefig(path, dpi=220)


def _draw_accuracy(axes: Axes, results: RunResults) -> None:
    summary = results.summary
    # before the first training, an inference rule may lack its prototypes
    mean = {point["round"]: point["weighted"] for point in summary["curve"] if point["round"] > 0}
    # drawn first to be first in the legend, and by zorder above the others
    _plot(axes, mean, color="black", linewidth=2.0, label=_mean_label(summary), zorder=5, marker=_marker(mean))
    for number, client in enumerate(summary["per_client"]):
        style = _client_style(number, client, summary["per_client"])
        _plot(axes, results.accuracies(client["client"]), linewidth=0.9, alpha=0.8, **style)
    title = f"{method_named(summary['method']).title} on {summary['dataset']}: local test accuracy"
    axes.set(title=plot_text(title), xlabel="completed rounds", ylabel="accuracy (%)")


def _mean_label(summary: dict[str, Any]) -> str:
    last = summary["accuracy"]["last"]
    if last is None:
        return "mean"
    return f"mean over {share_of_clients(last['clients'], summary['clients'])}"


def _plot(axes: Axes, accuracies: dict[int, float], **style: Any) -> None:
    axes.plot(list(accuracies), [100 * accuracy for accuracy in accuracies.values()], markersize=3, **style)


def _client_style(number: int, client: dict[str, Any], clients: list[dict[str, Any]]) -> dict[str, Any]:
    if len(clients) > _NAMED_CLIENTS:
        return {"color": "0.7", "label": f"each of {len(clients)} clients" if number == 0 else "_unnamed"}
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number // len(COLOURS)],
        "label": plot_text(f"{client['client']}: {client['architecture']}"),
    }


def _draw_losses(axes: Axes, results: RunResults) -> None:
    losses, method = results.mean_losses(), method_named(results.summary["method"])
    for number, (name, values) in enumerate(losses.items()):
        total = name == "total"
        axes.plot(
            list(values),
            list(values.values()),
            color="black" if total else COLOURS[(number - ("total" in losses)) % len(COLOURS)],
            linewidth=2.0 if total else 1.2,
            marker=_marker(values),
            markersize=3 if total else 2.5,
            label=plot_text(method.loss_term(name)),
        )
    scale_losses(axes, losses)
    axes.set(title="Local loss, mean over clients", xlabel="round", ylabel="loss")


def scale_losses(axes: Axes, losses: dict[str, dict[int, float]]) -> None:
    """Logarithmic where it can be: the terms differ by orders of magnitude."""
    if losses and all(value > 0 for values in losses.values() for value in values.values()):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")  # powers of ten would be formulas


def _marker(points: dict[int, float]) -> str:
    return "o" if len(points) <= _MARKED_ROUNDS else ""


def _finish(axes: Axes, *, legend_columns: int) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    if axes.get_legend_handles_labels()[0]:
        # below the axes, where no curve runs through it
        axes.legend(loc="upper center", bbox_to_anchor=(0.47, -0.15), ncols=legend_columns)
