"""The figure of the gains over local training."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from feddbp_lab.results.pictures.figure import BLUE, GREY, ORANGE, Picture, write_pictures
from results_page.kept import LOCAL, SETS, Kept
from results_page.methods import COMPARED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_IMAGES: Final = Path(__file__).parents[1] / "images"
_MARKS: Final = "os^D"
_COLOURS: Final = (BLUE, ORANGE, GREY, "#1b1b1b")


def write_figure(kept: Kept) -> None:
    picture = Picture(
        name="gains",
        title="Gain over local training",
        caption="Gain over local training by method and data set, with 95 % intervals.",
        draw=partial(draw_gains, kept=kept),
        aspect=0.55,
    )
    png, _ = write_pictures([picture], _IMAGES, columns=2)[picture.name]
    png.unlink()


def draw_gains(axes: Axes, kept: Kept) -> None:
    """Differences to local training with their intervals, a row for each method and a mark for each data set.

    The mark is hollow over fewer than three seeds.
    """
    for place, (name, title) in enumerate(SETS.items()):
        for row, method in enumerate(COMPARED):
            found = kept.compare(method, LOCAL, name)
            if found is None or found.interval is None:
                continue
            axes.errorbar(
                [found.mean],
                [row + 0.18 * (place - 1.5)],
                xerr=[[found.mean - found.interval.low], [found.interval.high - found.mean]],
                fmt=_MARKS[place],
                color=_COLOURS[place],
                markerfacecolor=_COLOURS[place] if found.seeds > 2 else "white",
                markersize=4,
                linewidth=1.0,
                label=title if row == 0 else None,
            )
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.set_yticks(range(len(COMPARED)), COMPARED)
    axes.invert_yaxis()
    axes.set_xlabel("points of accuracy over local training")
    axes.grid(axis="y", visible=False)
    axes.legend(loc="lower left")
