"""The notebook of examples/ runs from its first cell to its last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient", reason="the extra `dev` is not installed")
nbformat = pytest.importorskip("nbformat", reason="the extra `dev` is not installed")

NOTEBOOK = Path(__file__).parents[2] / "examples" / "federation.ipynb"


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    directory = tmp_path_factory.mktemp("notebook")
    nbclient.NotebookClient(notebook, timeout=500, resources={"metadata": {"path": str(directory)}}).execute()
    return notebook


def texts(notebook: Any) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(output.get("text", "") for output in outputs)


def test_every_cell_runs_and_the_run_is_finished(executed: Any) -> None:
    assert "finished: " in texts(executed)
    assert "over 4 of 4 clients" in texts(executed)
    assert "predicted " in texts(executed)


def test_tables_and_pictures_are_shown(executed: Any) -> None:
    shown = [output.get("data", {}) for cell in executed.cells for output in cell.get("outputs", [])]
    assert sum("text/html" in data for data in shown) == 2
    assert sum("image/png" in data for data in shown) == 3


def test_it_is_stored_without_outputs() -> None:
    """Pictures in a notebook are megabytes in the history of a repository."""
    assert all(not cell.get("outputs") for cell in nbformat.read(NOTEBOOK, as_version=4).cells)
