"""Directories of another user: a command that may not read or write there says where, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from unreadable import close_to_this_user

from feddbp_common.errors import ExitCode
from feddbp_lab.cli import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["dashboard", "closed"], "closed/summary.json"),
        (["dashboard", "closed/run"], "closed/run"),
        (["report", "closed"], "closed/summary.json"),
        (["predict", "closed", "x.png"], "cannot read the checkpoint closed"),
        (["predict", "closed/client-0", "x.png"], "cannot read the checkpoint closed/client-0"),
        (["export", "closed", "y.pt2"], "cannot read the checkpoint closed"),
        (["certs", "client", "closed", "--ids", "5"], "closed/client-5.key"),
        (["certs", "init", "closed"], "closed/ca.key"),
        (["health", "--certs", "closed"], "closed/probe.pem"),
        (["experiment", "report", "closed"], "closed/experiments"),
    ],
)
def test_a_directory_of_another_user_is_named_in_one_line(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("closed").mkdir()
    close_to_this_user(monkeypatch, Path("closed"))
    assert main(arguments) == ExitCode.USAGE
    assert capsys.readouterr().err == f"feddbp: error: {said}: Permission denied\n"


def test_an_authority_whose_key_is_another_users_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    certs = tmp_path / "certs"
    assert main(["certs", "init", str(certs)]) == ExitCode.OK
    read = Path.read_bytes

    def refused(path: Path) -> bytes:
        if path.name == "ca.key":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refused)
    assert main(["certs", "client", str(certs), "--ids", "5"]) == ExitCode.USAGE
    assert capsys.readouterr().err == f"feddbp: error: {certs}/ca.key: Permission denied\n"
