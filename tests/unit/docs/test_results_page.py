"""The tables of docs/results.md are those of the kept cells."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "docs" / "results_page.py"


@pytest.fixture(scope="module")
def results_page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results_page", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_of_the_page_are_made_from_the_cells_beside_it(results_page: ModuleType) -> None:
    page = results_page.PAGE.read_text(encoding="utf-8")
    assert results_page.rendered(page, results_page.Kept()) == page, "make results"


def test_every_table_has_its_place_on_the_page(results_page: ModuleType) -> None:
    page = results_page.PAGE.read_text(encoding="utf-8")
    for name in results_page.TABLES:
        assert page.count(f"<!-- table: {name} -->") == 1
