"""The command `feddbp-client` before it connects: what is wrong with its options."""

from __future__ import annotations

import pytest

from feddbp_client.cli import main


def complaint(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line.removeprefix("feddbp-client: error: ")


def test_a_client_needs_either_an_id_or_a_list_of_ids(capsys: pytest.CaptureFixture[str]) -> None:
    assert "give only one of --id and --ids" in complaint(capsys, "--id", "3", "--ids", "3-5")
    assert "a client needs an id: give either --id N or --ids 0-19" in complaint(capsys)
