"""Paths that a user gives: what is there, and why a directory cannot be used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from feddbp_common.given_paths import directory_problem, is_there


def unseeable(directory: Path) -> Path:
    """A path that `Path.exists` raises for, as it does for one in a directory of another user."""
    path = directory / ("x" * 300)
    with pytest.raises(OSError, match="File name too long"):
        path.exists()
    return path


def test_what_may_not_be_looked_at_is_not_there(tmp_path: Path) -> None:
    assert not is_there(unseeable(tmp_path))
    assert not is_there(tmp_path / "missing")
    assert is_there(tmp_path)


def test_a_directory_that_can_be_made_has_no_problem(tmp_path: Path) -> None:
    assert directory_problem(tmp_path) is None
    assert directory_problem(tmp_path / "not" / "yet" / "there") is None
    assert not list(tmp_path.iterdir())


def test_a_file_in_the_place_of_a_directory_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert directory_problem(file) == "it is a file; give a directory"
    assert directory_problem(file / "below") == f"{file} is a file; give a directory"


def test_what_the_system_says_is_told(tmp_path: Path) -> None:
    assert directory_problem(unseeable(tmp_path)) == "File name too long"


def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may do anything
    assert directory_problem(tmp_path) == "Permission denied"
