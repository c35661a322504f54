"""What docs/experiments.md shows of a command is what the command prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from feddbp_lab.cli import main

PAGE = Path(__file__).parents[3] / "docs" / "experiments.md"


def test_the_list_of_built_in_experiments_is_that_of_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["experiment", "list"]) == 0
    printed = "".join(f"    {line.rstrip()}\n" for line in capsys.readouterr().out.splitlines())
    assert f"    $ feddbp experiment list\n{printed}" in PAGE.read_text(encoding="utf-8")
