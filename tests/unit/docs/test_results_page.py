"""The tables of docs/results.md are those of the kept cells."""

from __future__ import annotations

from results_page.kept import Kept
from results_page.page import PAGE, TABLES, rendered


def test_the_tables_of_the_page_are_made_from_the_cells_beside_it() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert rendered(page, Kept()) == page, "make results"


def test_every_table_has_its_place_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in TABLES:
        assert page.count(f"<!-- table: {name} -->") == 1
