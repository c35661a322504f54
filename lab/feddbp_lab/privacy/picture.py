"""The audit of a run as a picture: how well members are told from others, by the samples behind a prototype."""

from __future__ import annotations

from pathlib import Path

from feddbp_lab.privacy.audit import SIZES, SUM, UPLOAD, Audit
from feddbp_lab.privacy.table import size_text
from feddbp_lab.results.curves import COLOURS, STYLE


def draw_audit(found: Audit, path: Path) -> None:
    # takes a second to import
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.6, 2.8), layout="constrained")
        axes = figure.subplots()
        sizes = [size for size in SIZES if any(size in tallies for tallies in found.membership.values())]
        lowest = 0.4
        for colour, marker, attacked in zip(COLOURS, "os", (UPLOAD, SUM), strict=False):
            tallies = found.membership.get(attacked, {})
            attacks = [
                (place, tallies[size]) for place, size in enumerate(sizes) if size in tallies and tallies[size].pairs
            ]
            aucs = [tally.auc for _, tally in attacks]
            below = [tally.auc - tally.interval.low for _, tally in attacks]
            above = [tally.interval.high - tally.auc for _, tally in attacks]
            lowest = min([lowest, *(tally.interval.low - 0.02 for _, tally in attacks)])
            axes.errorbar(
                [place for place, _ in attacks],
                aucs,
                yerr=(below, above),
                color=colour,
                marker=marker,
                markersize=4,
                elinewidth=0.8,
                capsize=2,
                label=attacked,
            )
        axes.axhline(0.5, color="0.5", linewidth=0.8, linestyle="--", label="guessing")
        if found.bound is not None:
            axes.axhline(found.bound, color="0.5", linewidth=0.8, linestyle=":", label="bound by epsilon")
        axes.set_xticks(range(len(sizes)), [size_text(size) for size in sizes])
        axes.set(
            title=f"{found.method} on {found.dataset}: membership",
            xlabel="samples of the class",
            ylabel="AUC",
            ylim=(lowest, 1.02),
        )
        axes.legend(loc="best")
        figure.savefig(path, dpi=220)
