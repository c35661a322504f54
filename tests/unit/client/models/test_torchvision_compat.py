"""torchvision can be imported beside any build of torch; operators of its own library are not declared again."""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

import pytest
import torch

from feddbp_client.models import torchvision_compat as compat
from feddbp_common.errors import ConfigurationError

Importing = Callable[..., list[str]]


@pytest.fixture
def importing(monkeypatch: pytest.MonkeyPatch) -> Importing:
    """Runs the uncached import with fakes, and returns the steps in their order."""

    def run(*, library_loads: bool) -> list[str]:
        done: list[str] = []

        def import_module(name: str) -> ModuleType:
            done.append(f"import {name}")
            return ModuleType(name)

        monkeypatch.setattr(compat, "_compiled_library_loads", lambda package: library_loads)
        monkeypatch.setattr(compat, "_declare_missing_operators", lambda: done.append("declare"))
        monkeypatch.setattr(compat, "import_module", import_module)
        compat.torchvision.__wrapped__()
        return done

    return run


def test_torchvision_is_imported_once() -> None:
    vision = compat.torchvision()
    assert vision is compat.torchvision()
    assert hasattr(torch.ops.torchvision, "nms")
    assert callable(vision.models.resnet18)


def test_operators_are_declared_before_the_import_where_the_library_does_not_load(importing: Importing) -> None:
    assert importing(library_loads=False) == ["declare", "import torchvision"]


def test_nothing_is_declared_where_the_library_loads(importing: Importing) -> None:
    assert importing(library_loads=True) == ["import torchvision"]


@pytest.mark.parametrize("suffix", EXTENSION_SUFFIXES)
def test_a_library_that_cannot_be_opened_does_not_load(suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"_C{suffix}").write_bytes(b"built for something else")
    assert not compat._compiled_library_loads(tmp_path)


def test_an_operator_that_exists_is_not_declared_again() -> None:
    compat.torchvision()
    declared = len(compat._declared)
    compat._declare_missing_operators()
    assert len(compat._declared) == declared


def test_a_missing_torchvision_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="pip install"):
        compat.torchvision.__wrapped__()
