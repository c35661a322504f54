"""The command `feddbp-client` before it connects: what is wrong with its options."""

from __future__ import annotations

from pathlib import Path

import pytest

from feddbp_client.cli import main


def complaint(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line.removeprefix("feddbp-client: error: ")


def test_a_client_needs_either_an_id_or_a_list_of_ids(capsys: pytest.CaptureFixture[str]) -> None:
    assert "give only one of --id and --ids" in complaint(capsys, "--id", "3", "--ids", "3-5")
    assert "a client needs an id: give either --id N or --ids 0-19" in complaint(capsys)


def test_data_that_does_not_exist_is_refused_before_a_server_is_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "images.npz"
    assert complaint(capsys, "--id", "0", "--data", str(missing)) == f"--data {missing}: no such file or directory"


def test_a_dry_run_needs_no_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--id", "0", "--data", str(tmp_path / "images.npz"), "--dry-run"]) == 0
    assert "images.npz" in capsys.readouterr().out


def test_data_of_a_user_that_does_not_exist_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(capsys, "--id", "0", "--data", "~no-such-user/images")
    assert said == "--data ~no-such-user/images: could not determine home directory."
