"""`feddbp report` on what a real server left, on what was kept of it, and on what is no result of a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab_samples import printed, results
from light_runs import finish
from processes import Federation

from feddbp_lab.cli import main
from feddbp_lab.terminal.run_table import report


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A directory with the files of a run that is over."""
    directory = tmp_path / "run"
    directory.mkdir()
    sample = results()
    (directory / "summary.json").write_text(json.dumps(sample.summary))
    (directory / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in sample.metrics))
    return directory


async def test_the_state_directory_of_a_server_is_all_it_takes(
    running_federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    await finish(running_federation, "--clients", 2, "--min-clients", 2, "--rounds", 2, clients=2)
    directory = running_federation.state_dir
    assert main(["report", str(directory)]) == 0
    told = capsys.readouterr().out
    assert told.startswith("FedDBP on digits, seed 0 ")
    assert [line.split()[:2] for line in told.splitlines() if " light " in line] == [["0", "light"], ["1", "light"]]
    assert running_federation.summary()["prototypes_sha256"] in told
    assert (directory / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_it_prints_what_the_demo_prints_at_its_end(
    kept: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(kept.parent)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["report", "run"]) == 0
    assert capsys.readouterr().out == printed(report(results(), Path("run")))


def test_a_run_that_failed_is_reported_with_its_reason(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (kept / "summary.json").write_text(json.dumps(results(outcome="failed").summary))
    assert main(["report", str(kept)]) == 0
    assert "failed: too few clients" in capsys.readouterr().out


def without(name: str) -> Callable[[Path], Any]:
    return lambda directory: (directory / name).unlink()


def with_summary(text: str) -> Callable[[Path], Any]:
    return lambda directory: (directory / "summary.json").write_text(text)


def with_metrics(text: bytes) -> Callable[[Path], Any]:
    return lambda directory: (directory / "metrics.jsonl").write_bytes(text)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (without("summary.json"), "run has no summary.json; a server's --state-dir has both once its run is over"),
        (without("metrics.jsonl"), "run has no metrics.jsonl; "),
        (with_summary('{"method": "feddbp", '), "run are damaged: summary.json: Expecting property name"),
        (with_summary("[]"), "run are damaged: summary.json: not an object"),
        (with_summary('{"method": "feddbp"}'), "run are damaged: 'completed_rounds' is missing"),
        (with_summary(json.dumps({**results().summary, "per_client": None})), "run are damaged: "),
        (with_metrics(b'{"client": 0'), "run are damaged: metrics.jsonl, line 1: Expecting"),
        (with_metrics(b'{"client": 0}\n'), "run are damaged: 'test_samples' is missing"),
        (with_metrics(b"\xff\xfe\x00\n"), "run are damaged: metrics.jsonl, line 1: "),
    ],
)
def test_files_that_are_missing_or_damaged_are_told_in_one_line(
    kept: Path, spoil: Callable[[Path], Any], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(kept)
    assert main(["report", str(kept)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert complaint in told.err
    assert told.err.count("\n") == 1
    assert not (kept / "curves.png").exists()


def test_a_directory_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert f"{tmp_path}/nowhere: no such directory" in capsys.readouterr().err


def test_a_picture_that_cannot_be_written_is_named(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (kept / "curves.png").mkdir()
    assert main(["report", str(kept)]) == 2
    assert f"{kept}/curves.png: Is a directory" in capsys.readouterr().err
