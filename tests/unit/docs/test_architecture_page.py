"""The page on the architecture against the code: names, folders, imports and phases."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from pages import DOCS

from feddbp_server.run.state_machine.state import Phase

ROOT: Final = DOCS.parent
PAGE: Final = (DOCS / "architecture.md").read_text()
PUBLIC_API: Final = "feddbp"
"""Loads names of the other packages when they are used; the page states this exception."""
PREFIXES: Final = {
    "lab": "feddbp_lab",
    "server": "feddbp_server",
    "client": "feddbp_client",
    "common": "feddbp_common",
    "proto": "feddbp",
}
"""Import packages by folder."""


def modules() -> dict[str, Path]:
    """The files of all modules, and of packages by their `__init__`, by dotted name."""
    found = {}
    for folder in PREFIXES:
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES: Final = modules()


class Row(NamedTuple):
    """A row of a table; a column's names are those in backticks."""

    cells: list[str]

    def names(self, column: int) -> list[str]:
        return code_in(self.cells[column])


def code_in(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def section(heading: str) -> str:
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def rows(heading: str) -> list[Row]:
    """The rows of a section's table, without its head."""
    lines = [line for line in section(heading).splitlines() if line.startswith("|")]
    return [Row([cell.strip() for cell in line.strip("|").split("|")]) for line in lines[2:]]


def diagram(heading: str) -> str:
    found = re.search(r"^```mermaid\n(.*?)^```$", section(heading), flags=re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def file_named(name: str) -> Path:
    return MODULES.get(name, ROOT / name)


def imports_of(name: str) -> set[str]:
    """Modules of this project that a module imports, also inside functions; not those only for annotations."""
    found: set[str] = set()
    for node in _executed(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (submodules & MODULES.keys()) or {node.module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {imported for imported in found if imported.split(".")[0] in PREFIXES.values()}


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from _executed(child)


def is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def reachable(arrows: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        following = arrows.get(waiting.pop(), set()) - found
        found |= following
        waiting.extend(following)
    return found


LOOKUPS: Final = [*rows("Where to change what"), *rows("Where to add what")]
PROMISES: Final = rows("Where each promise is kept")
LAYERS: Final = re.findall(r"^- (`[^`]+` imports .*?): ", section("Packages"), flags=re.MULTILINE | re.DOTALL)


def test_the_page_has_rows_and_layers_to_check() -> None:
    assert len(LOOKUPS) >= 30
    assert len(PROMISES) >= 8
    assert len(LAYERS) >= 6


@pytest.mark.parametrize("row", [*LOOKUPS, *PROMISES], ids=lambda row: row.cells[0])
def test_every_module_and_file_in_a_table_exists(row: Row) -> None:
    assert row.names(1)
    assert [name for name in row.names(1) if not file_named(name).is_file()] == []


@pytest.mark.parametrize("row", PROMISES, ids=lambda row: row.cells[0])
def test_every_promise_names_a_module_and_a_test(row: Row) -> None:
    kept, tested = row.cells[1].split(";")
    assert all(name in MODULES for name in code_in(kept))
    assert all(name.startswith("tests/") for name in code_in(tested))


@pytest.mark.parametrize("row", LOOKUPS, ids=lambda row: row.cells[0])
def test_what_to_look_for_is_in_a_module_of_its_row_and_every_module_has_some_of_it(row: Row) -> None:
    sources = [file_named(name).read_text() for name in row.names(1)]
    found = [{name for name in row.names(2) if re.search(rf"\b{name}\b", source)} for source in sources]
    assert set().union(*found) == set(row.names(2))
    assert all(found)


def test_every_folder_with_modules_is_described_and_no_other() -> None:
    packages = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    described = [row.cells[0].strip("`") for row in rows("Packages")]
    assert len(described) == len(set(described))
    assert set(described) == {name for name in packages if not is_in(name, PUBLIC_API)}


def test_packages_import_only_along_the_arrows() -> None:
    arrows: dict[str, set[str]] = {}
    for start, end in re.findall(r"(\w+) --> (\w+)", diagram("Packages")):
        arrows.setdefault(start, set()).add(end)
    assert arrows.keys() | set().union(*arrows.values()) == PREFIXES.keys()
    forbidden = [
        f"{name} imports {imported}"
        for folder, package in PREFIXES.items()
        for name in MODULES
        if is_in(name, package) and name != PUBLIC_API
        for imported in imports_of(name)
        if not any(is_in(imported, PREFIXES[other]) for other in {folder} | reachable(arrows, folder))
    ]
    assert forbidden == []


@pytest.mark.parametrize("sentence", LAYERS)
def test_a_layer_imports_what_the_page_says_and_nothing_else(sentence: str) -> None:
    layer, *allowed = code_in(sentence)
    imported = {found for name in MODULES if is_in(name, layer) for found in imports_of(name)}
    assert {name for name in imported if not any(is_in(name, package) for package in (layer, *allowed))} == set()
    assert {package for package in allowed if not any(is_in(name, package) for name in imported)} == set()


def test_the_diagram_of_states_has_every_phase_and_no_other() -> None:
    assert set(re.findall(r"\b[A-Z]{3,}\b", diagram("The states of a run"))) == {phase.name for phase in Phase}
