"""Pages as sinks of text from another party: it changes no element of a page, and every letter of it is visible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest
from experiment_samples import fail, finish, planned
from foreign_text import FOREIGN, results_with

from feddbp_common.printable import printable
from feddbp_lab.dashboard.access import Access, allowed_hosts
from feddbp_lab.dashboard.library import Library
from feddbp_lab.dashboard.web import build_app
from feddbp_lab.experiments.report.build import write_report
from feddbp_lab.experiments.run.cell_dir import Failure
from feddbp_lab.results.pictures.report import PAGE_NAME, write_run_pictures
from feddbp_lab.results.run_files import RunFiles


class Elements(HTMLParser):
    """The elements of a page with the names of their attributes, and its text; of drawings, what could act."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.text: list[str] = []
        self.links: list[str] = []
        self._drawings = 0
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._drawings += tag == "svg"
        names = tuple(name for name, _ in attrs)
        if not self._drawings or tag in ("script", "foreignobject", "a", "image", "style"):
            self.elements.append((tag, names))
        assert not any(name.startswith("on") for name in names), (tag, names)
        self.text += [value or "" for _, value in attrs]
        self.links += [value or "" for name, value in attrs if name.endswith(("href", "src"))]

    def handle_endtag(self, tag: str) -> None:
        self._drawings -= tag == "svg"
        if not self._drawings:
            self.elements.append((f"/{tag}", ()))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def report_page(texts: Sequence[str], directory: Path) -> str:
    write_run_pictures(RunFiles(directory), results_with(*texts, directory=directory))
    return (directory / PAGE_NAME).read_text()


def experiment_page(texts: Sequence[str], directory: Path) -> str:
    output_dir, expanded = planned(directory, seeds=range(-(-len(texts) // 6) + 1), title=printable(texts[-1]))
    for number, cell in enumerate(expanded.cells.values()):
        if number < len(texts):
            cause = texts[number]
            fail(output_dir, cell, Failure(cause=cause, exit_code=1, last_lines=(cause, cause)))
        else:
            finish(output_dir, cell, lambda *_: 0.5)
    write_report(output_dir)
    return (output_dir.report_dir / "index.html").read_text()


PAGES: dict[str, Callable[[Sequence[str], Path], str]] = {"run report": report_page, "experiments": experiment_page}


@pytest.mark.parametrize("page", PAGES)
def test_foreign_text_changes_no_element_of_a_page(page: str, tmp_path: Path) -> None:
    plain = Elements(PAGES[page](["net"] * len(FOREIGN), tmp_path / "plain"))
    shown = Elements(PAGES[page](FOREIGN, tmp_path / "foreign"))
    assert shown.elements == plain.elements
    assert all(piece.isprintable() for line in shown.text for piece in line.split("\n"))
    assert not any(link.lower().startswith(("javascript:", "data:", "http")) for link in shown.links)
    if page == "experiments":
        assert all(printable(text) in " ".join(shown.text) for text in FOREIGN)


async def test_the_dashboard_serves_foreign_text_as_printable_json_alone(tmp_path: Path) -> None:
    """Its pages are the same for every run; what is of a run comes as JSON, which scripts show as text."""
    results_with(*FOREIGN, directory=tmp_path / "run")
    library = Library(folder=tmp_path, runs=[tmp_path / "run"])
    app = build_app(library, Access(), hosts=allowed_hosts("127.0.0.1", 8060))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8060") as client:
        data = [await client.get(path) for path in ("/run/0/api/run", "/api/runs")]
        pages = [await client.get(path) for path in ("/", "/run/0/", "/nothing", "/run/<b>net</b>/")]
    for answer in data:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("application/json")
        assert all(text.isprintable() for text in texts_in(answer.json()))
    assert {printable(text) for text in FOREIGN} <= set(texts_in(data[0].json()))
    for answer in pages:
        assert not any(text in answer.text for text in FOREIGN if len(text) > 8)
        assert "<b>net" not in answer.text


def texts_in(value: object) -> list[str]:
    """Every text in a JSON value, keys too."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in value.items() for part in item for text in texts_in(part)]
    return [text for part in value for text in texts_in(part)] if isinstance(value, list) else []
