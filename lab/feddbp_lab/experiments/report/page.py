"""One page with everything: tables, figures and what is missing; nothing is loaded from elsewhere."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from feddbp_lab.experiments.report.figures import INK

_PIXELS_PER_POINT: Final = 1.7
"""How large figures are shown where there is room."""
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1a1a1a; --faint: #6b6b6b; --line: #d8d8d8; --paper: #ffffff; --band: #f6f6f4;
  --alarm: #a33b00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e6e3; --faint: #9a9894; --line: #3a3a3a; --paper: #161616;
  --band: #1f1f1f; --alarm: #ff9d66; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.5rem 5rem; max-width: 90rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 3.5rem 0 .3rem; padding-top: 1rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 2rem 0 .3rem; }
p { margin: .3rem 0 .8rem; max-width: 52rem; }
p.faint, nav, footer, td.faint { color: var(--faint); }
a { color: inherit; }
nav a { margin-right: 1rem; }
.alarm { color: var(--alarm); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; margin: .8rem 0; }
thead th { font-weight: 600; border-bottom: 1px solid var(--ink); vertical-align: bottom; }
thead tr:not(:last-child) th.group { text-align: center; border-bottom-color: var(--line); }
th, td { padding: .22rem .55rem; text-align: right; white-space: nowrap; }
th.label { text-align: left; }
tbody th { font-weight: 500; }
tbody tr:nth-child(even) { background: var(--band); }
tbody tr:last-child > * { border-bottom: 1px solid var(--ink); }
figure { margin: 1rem 0; }
figure svg { width: 100%; height: auto; color: var(--ink); }
details { margin: .5rem 0; }
pre { overflow-x: auto; background: var(--band); padding: .6rem .8rem; font-size: .8rem; }
"""


@dataclass(frozen=True, kw_only=True)
class Section:
    """An experiment on the page, in HTML that is ready."""

    name: str
    title: str
    body: str
    files: tuple[Path, ...]


def page(sections: Sequence[Section]) -> str:
    links = "".join(f'<a href="#{section.name}">{html.escape(section.title)}</a>' for section in sections)
    content = "\n".join(map(_section, sections))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Experiments</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>Experiments</h1>\n<nav>{links}</nav>\n{content}\n</body>\n</html>\n"
    )


def _section(section: Section) -> str:
    files = " ".join(f'<a href="{html.escape(path.name)}">{html.escape(path.name)}</a>' for path in section.files)
    return (
        f'<section id="{section.name}">\n<h2>{html.escape(section.title)}</h2>\n{section.body}\n'
        f'<p class="faint">Files: {files}</p>\n</section>'
    )


def embedded(svg: Path, description: str) -> str:
    """A figure within the page, drawn in the page's own ink."""
    text = svg.read_text(encoding="utf-8")
    # without the XML declaration and document type, which have no place in HTML
    drawing = text[text.index("<svg") :].replace(INK, "currentColor")
    points = float(re.findall(r'width="([\d.]+)pt"', drawing)[0])
    drawing = re.sub(r' (?:width|height)="[\d.]+pt"', "", drawing, count=2)
    look = f'role="img" aria-label="{html.escape(description)}" style="max-width: {_PIXELS_PER_POINT * points:.0f}px"'
    return f"<figure {look}>{drawing}</figure>"
