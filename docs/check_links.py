"""Finds dead links inside the repository: in the Markdown sources, and in the built pages given as argument.

A link is dead when its file does not exist or has no such anchor. Addresses of other hosts are not fetched.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from myst_parser.slugs import github_slugify

ROOT = Path(__file__).parents[1]


@dataclass
class Page:
    """What a page links to, and what can be linked to on it."""

    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)


def read_markdown(path: Path) -> Page:
    """A page as a forge shows it: headings are anchors, named after their text."""
    page = Page()
    seen: Counter[str] = Counter()
    tokens = MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))
    for before, token in zip([None, *tokens], tokens, strict=False):
        children = token.children or []
        if before is not None and before.type == "heading_open":
            slug = github_slugify("".join(child.content for child in children))
            page.anchors.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
        page.links += [str(child.attrs[name]) for child in children for name in ("href", "src") if name in child.attrs]
    return page


def read_html(path: Path) -> Page:
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader.page


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name == "id":
                self.page.anchors.add(value)
            elif value and name in ("href", "src"):
                self.page.links.append(value)


_READERS = {".md": read_markdown, ".html": read_html}


@cache
def read(path: Path) -> Page:
    return _READERS[path.suffix](path)


def dead_links(pages: Iterable[Path], top: Path) -> Iterator[str]:
    """A line for every link that leads nowhere, or out of `top`."""
    for page in pages:
        for link in read(page).links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if not target.exists() or not target.is_relative_to(top):
                yield f"{page.relative_to(top)}: {link} does not exist"
            elif parts.fragment and target.suffix in _READERS and unquote(parts.fragment) not in read(target).anchors:
                yield f"{page.relative_to(top)}: {link}: the page has no such anchor"


def markdown_sources() -> list[Path]:
    docs = ROOT / "docs"
    pages = [*ROOT.glob("*.md"), *docs.rglob("*.md")]
    generated = (docs / "_build", *docs.glob("results/*/report"))
    return sorted(page for page in pages if not any(page.is_relative_to(folder) for folder in generated))


def built_pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


def main(arguments: list[str]) -> int:
    dead = list(dead_links(markdown_sources(), ROOT))
    for site in (Path(argument).resolve() for argument in arguments):
        dead += dead_links(built_pages(site), site)
    for line in dead:
        print(line, file=sys.stderr)
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
