"""The curves of several runs in one picture."""

from __future__ import annotations

from pathlib import Path

from feddbp_common.evaluation import share_of_clients
from feddbp_lab.results.comparison import ComparedRun, Comparison
from feddbp_lab.results.curves import COLOURS, DASHES, STYLE


def draw_comparison(comparison: Comparison, path: Path) -> None:
    # takes a second to import
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.2, 3.4), layout="constrained")
        axes = figure.subplots()
        for number, run in enumerate(comparison.runs):
            axes.plot(
                list(run.curve),
                [100 * accuracy for accuracy in run.curve.values()],
                color=COLOURS[number % len(COLOURS)],
                linestyle=DASHES[number // len(COLOURS) % len(DASHES)],
                label=_label(run),
            )
        axes.set(title="Accuracy over clients", xlabel="completed rounds", ylabel="accuracy (%)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        axes.legend(loc="upper center", bbox_to_anchor=(0.47, -0.15), ncols=1)
        figure.savefig(path, dpi=220)


def _label(run: ComparedRun) -> str:
    last = run.last
    return run.name if last is None else f"{run.name}: {share_of_clients(last.clients, run.summary['clients'])}"
