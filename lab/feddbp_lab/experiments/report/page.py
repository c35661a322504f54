"""The report page: what its sections contain, rendered by the templates into one file that loads nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from feddbp_lab.experiments.report.cell_list import CellEntry
from feddbp_lab.experiments.report.formatted import FormattedTable
from feddbp_lab.experiments.run.cell_dir import Failure
from feddbp_lab.results.curves import INK
from feddbp_lab.results.html_templates import html_templates

_PIXELS_PER_POINT: Final = 1.7
"""Largest size of a figure on the page, where the window is wide enough."""


@dataclass(frozen=True, kw_only=True)
class PageFigure:
    """A drawing embedded in the page."""

    label: str
    """Its description for screen readers."""
    svg: str
    max_width: int
    """Pixels."""

    @classmethod
    def from_file(cls, path: Path, label: str) -> PageFigure:
        """Reads an SVG file and makes it follow the page's text colour and width."""
        text = path.read_text(encoding="utf-8")
        # the XML declaration and document type are not allowed inside HTML
        svg = text[text.index("<svg") :].replace(INK, "currentColor")
        points = float(re.findall(r'width="([\d.]+)pt"', svg)[0])
        svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)
        return cls(label=label, svg=svg.rstrip(), max_width=round(_PIXELS_PER_POINT * points))


@dataclass(frozen=True, kw_only=True)
class PageTable:
    """A table and the text below it."""

    table: FormattedTable
    caption: str


@dataclass(frozen=True, kw_only=True)
class PagePart:
    """The results of one grid of an experiment."""

    title: str
    figure: PageFigure | None
    tables: Sequence[PageTable]


@dataclass(frozen=True, kw_only=True)
class PageSection:
    """An experiment on the page."""

    name: str
    title: str
    notes: Sequence[str]
    warnings: Sequence[str]
    parts: Sequence[PagePart]
    overview: str
    """How many cells are done, and when."""
    cells: Sequence[CellEntry]
    failures: Mapping[str, Failure]
    """By the id of the cell."""
    files: Sequence[Path]


def render_page(sections: Sequence[PageSection]) -> str:
    environment = html_templates("feddbp_lab.experiments.report")
    return environment.get_template("page.html.j2").render(sections=sections)
