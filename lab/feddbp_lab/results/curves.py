"""The curves of a run as a picture: accuracy of every client and their mean, and the terms of the loss."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from feddbp_common.methods import method_named
from feddbp_lab.results.run_results import RunResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours: they stay apart for the colour-blind and in grey
COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#A5A13A", "#7A5C99")
DASHES: Final = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
STYLE: Final[dict[Any, Any]] = {
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
_NAMED_CLIENTS: Final = 10
"""More clients than these are one grey bundle: nobody tells twenty colours apart."""
_DOTTED_ROUNDS: Final = 25
"""Up to so many rounds every point is marked."""


def draw_curves(results: RunResults, path: Path) -> None:
    # a second to import, and only needed at the very end
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        # without pyplot, which keeps figures and looks for a screen; saving a bare figure as PNG is Agg's work
        figure = Figure(figsize=(7.2, 3.5), layout="constrained")
        accuracy, loss = figure.subplots(1, 2)
        _draw_accuracy(accuracy, results)
        _draw_losses(loss, results)
        for axes in (accuracy, loss):
            _finish(axes)
        figure.savefig(path, dpi=220)


def _draw_accuracy(axes: Axes, results: RunResults) -> None:
    summary = results.summary
    mean = {point["round"]: point["weighted"] for point in summary["curve"]}
    # first, and so first in the legend; above all the others in the picture
    _plot(axes, mean, color="black", linewidth=2.0, label="mean by samples", zorder=5, marker=_marker(mean))
    for number, client in enumerate(summary["per_client"]):
        look = _client_look(number, client, summary["per_client"])
        _plot(axes, results.accuracies(client["client"]), linewidth=0.9, alpha=0.8, **look)
    title = f"{method_named(summary['method']).title} on {summary['dataset']}: local test accuracy"
    axes.set(title=title, xlabel="completed rounds", ylabel="accuracy (%)")


def _plot(axes: Axes, accuracies: dict[int, float], **look: Any) -> None:
    """From the first training on: before, some rules of inference have nothing to go by."""
    trained = {number: 100 * accuracy for number, accuracy in accuracies.items() if number > 0}
    axes.plot(list(trained), list(trained.values()), markersize=3, **look)


def _client_look(number: int, client: dict[str, Any], clients: list[dict[str, Any]]) -> dict[str, Any]:
    if len(clients) > _NAMED_CLIENTS:
        return {"color": "0.7", "label": f"each of {len(clients)} clients" if number == 0 else "_unnamed"}
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number // len(COLOURS)],
        "label": f"{client['client']}: {client['architecture']}",
    }


def _draw_losses(axes: Axes, results: RunResults) -> None:
    losses = results.mean_losses()
    for number, (name, values) in enumerate(losses.items()):
        total = name == "total"
        axes.plot(
            list(values),
            list(values.values()),
            color="black" if total else COLOURS[(number - ("total" in losses)) % len(COLOURS)],
            linewidth=2.0 if total else 1.2,
            marker=_marker(values),
            markersize=3 if total else 2.5,
            label="weighted total" if total else _term(name),
        )
    # the terms differ by orders of magnitude, and all of them fall
    if losses and all(value > 0 for values in losses.values() for value in values.values()):
        axes.set_yscale("log")
    axes.set(title="Local loss, mean over clients", xlabel="round", ylabel="loss")


def _term(name: str) -> str:
    """As a paper writes it: l_s is a symbol, ce_shared a cross-entropy."""
    kind, _, of = name.partition("_")
    if kind == "l" and of:
        return rf"$L_{{\mathrm{{{of}}}}}$"
    if kind == "ce":
        return f"CE, {of}" if of else "CE"
    return name.replace("_", " ")


def _marker(points: dict[int, float]) -> str:
    return "o" if len(points) <= _DOTTED_ROUNDS else ""


def _finish(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    if axes.get_legend_handles_labels()[0]:
        # below, where no curve can run through it
        axes.legend(loc="upper center", bbox_to_anchor=(0.47, -0.15), ncols=3)
