"""The tables of docs/results.md and of the README are those of the kept cells."""

from __future__ import annotations

from results_page.kept import Kept
from results_page.page import PAGES, TABLES, rendered


def test_the_tables_of_the_pages_are_made_from_the_kept_cells() -> None:
    kept = Kept()
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        assert rendered(page, kept) == page, "make results"


def test_every_table_has_its_place_on_a_page() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    for name in TABLES:
        assert pages.count(f"<!-- table: {name} -->") == 1
