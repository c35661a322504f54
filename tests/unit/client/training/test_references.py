"""References to functions: what a run may name, and what its client's operator has to allow."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from feddbp_client.training.references import load_reference
from feddbp_common.errors import ConfigurationError

WHAT = "the run's transform"


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """own, own.images and owner: modules that can be imported, each with a function."""
    (tmp_path / "own").mkdir()
    for path in ("own/__init__.py", "own/images.py", "owner.py"):
        (tmp_path / path).write_text("def function(): return __name__\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("own", "own.images", "owner"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize(
    ("reference", "allowed"),
    [
        ("own:function", ["own"]),
        ("own.images:function", ["own"]),
        ("own.images:function", ["own.images"]),
        ("owner:function", ["own", "owner"]),
    ],
)
def test_a_function_of_an_allowed_package_is_loaded(reference: str, allowed: list[str], packages: None) -> None:
    assert load_reference(reference, allowed, what=WHAT)() == reference.partition(":")[0]


@pytest.mark.parametrize(
    ("reference", "allowed", "add"),
    [
        ("own:function", [], "own"),
        ("own.images:function", [], "own.images"),
        ("owner:function", ["own"], "own,owner"),
        ("own:function", ["own.images"], "own.images,own"),
        ("own:function", ["function", "ow"], "function,ow,own"),
    ],
)
def test_any_other_is_refused_before_it_is_imported(
    reference: str, allowed: list[str], add: str, packages: None
) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        load_reference(reference, allowed, what=WHAT)
    module = reference.partition(":")[0]
    assert str(refusal.value) == (
        f"{WHAT} {reference}: this client may not import {module}; if you trust it, start the client with "
        f"--allow-import {add}"
    )
    assert module not in sys.modules


@pytest.mark.parametrize(
    "reference", ["own", "own:", ":function", ".own:function", "own..images:f", "own:a.b", "o n:f"]
)
def test_a_text_of_another_form_is_refused(reference: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is not of the form package\.module:function"):
        load_reference(reference, ["own"], what=WHAT)
