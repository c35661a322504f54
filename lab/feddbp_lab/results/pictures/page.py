"""One page with the clients and all pictures of a run, which loads nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from feddbp_lab.results.curves import INK
from feddbp_lab.results.html_templates import html_templates
from feddbp_lab.results.pictures.figure import Picture


@dataclass(frozen=True, kw_only=True)
class _Figure:
    name: str
    title: str
    caption: str
    svg: str


def render_pictures(
    title: str,
    facts: Mapping[str, str],
    clients: Sequence[Mapping[str, str]],
    pictures: Sequence[Picture],
    files: Mapping[str, tuple[Path, Path]],
) -> str:
    """`clients` are the rows of a table, by the titles of its columns."""
    environment = html_templates("feddbp_lab.results.pictures")
    figures = [
        _Figure(
            name=picture.name, title=picture.title, caption=picture.caption, svg=_inline(files[picture.name][1], number)
        )
        for number, picture in enumerate(pictures)
    ]
    return environment.get_template("pictures.html.j2").render(
        title=title, facts=facts, clients=clients, figures=figures
    )


def _inline(path: Path, number: int) -> str:
    """The drawing without its XML declaration, in the page's text colour, with ids that no other drawing has."""
    text = path.read_text(encoding="utf-8")
    svg = text[text.index("<svg") :].replace(INK, "currentColor").rstrip()
    for mark in ('id="', 'href="#', "url(#"):
        svg = svg.replace(mark, f"{mark}p{number}-")
    return svg
