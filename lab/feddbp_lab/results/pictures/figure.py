"""How pictures are drawn and written: the size of a paper's columns, fonts, colours that also differ in grey."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from feddbp_lab.results.curves import PRINT_STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMN_INCHES: Final = {1: 3.5, 2: 7.16}
"""Width of one and of two columns, as in the templates of IEEE and most others."""
BLUE: Final = "#0b4f9e"
ORANGE: Final = "#d9730d"
GREY: Final = "#8a8a8a"
PALE: Final = "#dcdcdc"
_STYLE: Final[dict[Any, Any]] = {
    **PRINT_STYLE,
    "font.family": "sans-serif",
    "font.sans-serif": ["Arial", "Helvetica", "Liberation Sans", "DejaVu Sans"],
    "text.parse_math": False,  # a class or a model may be named like a formula
}


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One picture: drawn on axes of a given width."""

    name: str
    """Of its files."""
    title: str
    caption: str
    """What it shows, for a page and for screen readers."""
    draw: Callable[[Axes], None]
    aspect: float = 0.62
    """Height over width."""
    inches_high: float | None = None
    """Its height, where it depends on the data and not on the width."""

    def size(self, columns: int) -> tuple[float, float]:
        width = COLUMN_INCHES[columns]
        return width, self.inches_high or width * self.aspect


def write_pictures(pictures: Sequence[Picture], directory: Path, *, columns: int) -> dict[str, tuple[Path, Path]]:
    """Writes every picture as PNG and SVG; returns the paths by name."""
    # takes a second to import
    import matplotlib as mpl
    from matplotlib.figure import Figure

    directory.mkdir(parents=True, exist_ok=True)
    written: dict[str, tuple[Path, Path]] = {}
    for picture in pictures:
        png, svg = directory / f"{picture.name}.png", directory / f"{picture.name}.svg"
        with mpl.rc_context(_STYLE):
            figure = Figure(figsize=picture.size(columns), layout="constrained")
            picture.draw(figure.subplots())
            figure.savefig(png, dpi=300)
            figure.savefig(svg, transparent=True, metadata={"Date": None})
        written[picture.name] = png, svg
    return written


def clipped(text: str, characters: int = 18) -> str:
    return text if len(text) <= characters else f"{text[: characters - 1]}…"
