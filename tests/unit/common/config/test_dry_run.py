"""`--dry-run --format toml` prints what `--config` reads."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from feddbp_client.cli import main as client
from feddbp_lab.cli import main as lab
from feddbp_server.cli import main as server

Command = Callable[[Sequence[str]], int]


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (
            server,
            ["--dataset", "custom", "--class-names", 'a "b",ä\\c,d', "--set", "tau=0.1", "--round-deadline", "90m"],
        ),
        (server, ["--method", "fedavg", "--clients", "3", "--join-window", "forever", "--host", "127.0.0.1"]),
        (client, ["--ids", "0-3", "--gpu", "1,2", "--allow-import", "one,two", "--data-cache-size", "3GB"]),
        (server, ["--secure-sums", "--certs", "certs"]),
        (server, ["--secure-sums", "--certs", "certs", "--sums", "fixed"]),
        (lambda argv: lab(["demo", *argv]), ["--clients", "3", "--out", "some where"]),
    ],
)
def test_the_file_gives_the_same_options(
    command: Command, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command([*arguments, "--dry-run"]) == 0
    expected = json.loads(capsys.readouterr().out)
    assert command([*arguments, "--dry-run", "--format", "toml"]) == 0
    written = capsys.readouterr().out
    assert not {"dry_run", "dry_run_format"} & {name for table in tomllib.loads(written).values() for name in table}
    file = tmp_path / "run.toml"
    file.write_text(written, encoding="utf-8")
    assert command(["--config", str(file), "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out) == expected
