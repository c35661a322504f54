from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import pytest
from pages import DOCS


def load_checker() -> ModuleType:
    """docs/ is no package: the checker is a script that `make docs` runs."""
    spec = importlib.util.spec_from_file_location("check_links", DOCS / "check_links.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


checker = load_checker()


@dataclass(frozen=True)
class Site:
    folder: Path
    returncode: int
    warnings: str

    def pages(self) -> set[str]:
        return {page.relative_to(self.folder).as_posix() for page in checker.built_pages(self.folder)}

    def links_of(self, page: str) -> set[str]:
        return {urlsplit(link).path for link in checker.read(self.folder / page).links}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """As `make docs` builds it; 7 s on two idle cores."""
    folder = tmp_path_factory.mktemp("site")
    options = ("-W", "--keep-going", "-q", "-b", "html")
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, "-d", folder / "doctrees", DOCS, folder / "html"],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "NO_COLOR": "1"},
    )
    return Site(folder=folder / "html", returncode=built.returncode, warnings=built.stderr)


def test_the_site_builds_without_a_warning(site: Site) -> None:
    assert (site.returncode, site.warnings) == (0, "")


def test_every_document_has_a_page(site: Site) -> None:
    documents = [source for source in checker.markdown_sources() if source.is_relative_to(DOCS)]
    assert {source.relative_to(DOCS).with_suffix(".html").as_posix() for source in documents} <= site.pages()


def test_every_page_is_in_the_contents_of_the_landing_page(site: Site) -> None:
    made_by_sphinx = {"search.html"}
    assert site.pages() - made_by_sphinx - site.links_of("index.html") == {"index.html"}


def test_no_page_has_a_dead_link(site: Site) -> None:
    assert list(checker.dead_links(checker.built_pages(site.folder), site.folder)) == []


def test_no_markdown_source_has_a_dead_link() -> None:
    assert list(checker.dead_links(checker.markdown_sources(), checker.ROOT)) == []


def test_every_module_named_in_the_documentation_exists() -> None:
    pattern = r"`(feddbp_(?:client|common|lab|server)(?:\.[a-z_]+)*)`"
    named = {name for source in checker.markdown_sources() for name in re.findall(pattern, source.read_text())}
    assert "feddbp_server.strategies" in named
    assert {name for name in named if importlib.util.find_spec(name) is None} == set()


def test_no_page_loads_a_script_or_a_style_from_another_host(site: Site) -> None:
    text = "\n".join(page.read_text() for page in checker.built_pages(site.folder))
    assert 'src="http' not in text
    assert 'rel="stylesheet" type="text/css" href="http' not in text


def test_diagrams_and_formulas_reach_the_pages(site: Site) -> None:
    assert 'class="mermaid' in (site.folder / "index.html").read_text()
    assert "<math " in (site.folder / "methods.html").read_text()


@pytest.mark.parametrize(
    ("link", "complaint"),
    [
        ("gone.md", "gone.md does not exist"),
        ("other.md#nowhere", "other.md#nowhere: the page has no such anchor"),
        ("#nowhere", "#nowhere: the page has no such anchor"),
        ("../outside.md", "../outside.md does not exist"),
    ],
)
def test_a_dead_link_is_named(tmp_path: Path, link: str, complaint: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\nSee [there]({link}).\n")
    (tmp_path / "other.md").write_text("# Other\n")
    assert list(checker.dead_links([page], tmp_path)) == [f"page.md: {complaint}"]


@pytest.mark.parametrize(
    "link",
    ["other.md", "other.md#a-title-with-code", "other.md#twice-1", "#page", "https://example.org/gone", "folder/"],
)
def test_a_live_link_is_passed_over(tmp_path: Path, link: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n| a |\n|---|\n| [there]({link}) |\n\n    [not a link](gone.md)\n")
    (tmp_path / "other.md").write_text("# A title with `code`!\n\n## Twice\n\n## Twice\n")
    (tmp_path / "folder").mkdir()
    assert list(checker.dead_links([page], tmp_path)) == []
