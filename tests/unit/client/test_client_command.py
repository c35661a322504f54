"""The command `feddbp-client` before it connects: what is wrong with its options."""

from __future__ import annotations

import subprocess
import sys
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


@pytest.mark.parametrize("flag", ["--data", "--frozen-weights"])
def test_files_that_do_not_exist_are_refused_before_a_server_is_looked_for(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "weights.safetensors"
    assert complaint(capsys, "--id", "0", flag, str(missing)) == f"{flag} {missing}: no such file or directory"


def test_a_state_directory_that_is_a_file_is_refused_before_a_server_is_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    said = complaint(capsys, "--id", "0", "--state-dir", str(file))
    assert said == f"the state directory {file} cannot be used: it is a file; give a directory"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("mini_pain", "no architecture is called 'mini_pain'; did you mean 'mini_plain'"),
        ("nopkg.x:y", "--model nopkg.x:y: cannot import 'nopkg.x'"),
    ],
)
def test_a_model_that_does_not_exist_is_refused_before_a_server_is_looked_for(
    model: str, message: str, tmp_path: Path
) -> None:
    nowhere = ("--server", "127.0.0.1:1", "--patience", "0", "--state-dir", str(tmp_path))
    command = [sys.executable, "-m", "feddbp_client.cli", "--id", "0", "--model", model, *nowhere]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"feddbp-client: error: {message}")
